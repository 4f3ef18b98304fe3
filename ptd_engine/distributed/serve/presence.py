"""How the ingress knows the replicas, and asks them what takes no engine.

A call by a handle of Ray Serve waits until the replica has room, so one that is full would say
nothing just when somebody looks. Therefore a replica makes its actor known to the ingress, again
and again since the ingress may have been started anew, and the ingress calls the actor itself.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypedDict

from ptd_engine.distributed.serve.wire import INGRESS
from ptd_engine.server import logs

_log = logging.getLogger(__name__)

_ASK_S = 10.0  # for a replica to answer
_AGAIN_S = 2.0


class State(TypedDict):
    """What a replica says of itself: its name, and what /health and /metrics of a single server
    show.
    """

    name: str
    health: dict[str, str | int]
    metrics: bytes


class Presence:
    """The replicas that are there, for the ingress."""

    def __init__(self) -> None:
        self._actors: dict[str, Any] = {}

    def note(self, name: str, actor: Any) -> None:
        """A replica is there, as this actor."""
        self._actors[name] = actor

    async def states(self) -> list[State]:
        """What the replicas say that answer. One that does not is forgotten until it tells again
        that it is there.
        """
        known = sorted(self._actors.items())
        found = await asyncio.gather(*(self._state(name, actor) for name, actor in known))
        return [state for state in found if state is not None]

    async def _state(self, name: str, actor: Any) -> State | None:
        try:
            async with asyncio.timeout(_ASK_S):
                # The hook that Ray Serve has for what routers want to know: it waits for no room.
                state: State = await actor.record_routing_stats.remote()
        except Exception as error:  # it has ended, or hangs
            self._actors.pop(name, None)
            logs.event(_log, "replica does not answer", replica=name, error=repr(error))
            return None
        return state


async def announce(name: str) -> None:
    """Tell the ingress again and again that this replica is there. Runs in a replica."""
    import ray
    from ray import serve

    actor = ray.get_runtime_context().current_actor
    ingress = serve.get_deployment_handle(INGRESS, serve.get_replica_context().app_name)
    while True:
        try:
            await ingress.announce.remote(name, actor)
        except Exception as error:  # the ingress has ended, and another one will be there
            logs.event(_log, "the ingress does not answer", error=repr(error))
        await asyncio.sleep(_AGAIN_S)
