"""One engine of several: the application of `ptd_engine.server` in an actor of Ray.

The actor listens at no port. Requests come as an ASGI scope and a body, and the messages of the
answer go back one by one, so all that the server does (parsing, errors, streams, metrics, giving a
request up) happens here as it does there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from fastapi import FastAPI
from starlette.types import Message, Receive

from ptd_engine.distributed.serve.presence import State, announce
from ptd_engine.distributed.serve.wire import REPLICA_HEADER
from ptd_engine.llm import LLM
from ptd_engine.server import ServerConfig, create_app, logs
from ptd_engine.server.service import Service


class EngineReplica:
    """Serves what the ingress hands on. Ray makes it, in the process of its own."""

    def __init__(
        self,
        load: Callable[[], LLM],
        config: ServerConfig,
        max_ongoing: int,
        name: str | None = None,
    ) -> None:
        """Load the model.

        Args:
            load: makes the engine.
            config: as of the whole server.
            max_ongoing: requests that come at once; none of them is refused for want of room.
            name: of this replica; None asks Ray Serve, and has the ingress told.
        """
        logs.configure(config.log_format)
        self._announces = name is None
        self._name = _own_name() if name is None else name
        # Who may ask was decided by the ingress, which alone sees the address that was asked.
        inner = replace(config, host="0.0.0.0", api_key=None, max_queue=max_ongoing)
        self._app: FastAPI = create_app(load(), inner)
        self._running = AsyncExitStack()
        self._begun: asyncio.Task[None] | None = None
        self._answers: set[asyncio.Task[None]] = set()

    @property
    def service(self) -> Service:
        """What serves, once the first request has come."""
        found: Service = self._app.state.service
        return found

    async def answer(self, scope: dict[str, Any], body: bytes) -> AsyncIterator[Message]:
        """The messages of one answer. Closing the iterator gives the request up.

        Args:
            scope: of ASGI, without what cannot be sent.
            body: whole.
        """
        await self._start()
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        gone = asyncio.Event()

        async def send(message: Message) -> None:
            messages.put_nowait(message)

        async def run() -> None:
            try:
                await self._app(scope, _receiver(body, gone), send)
            finally:
                messages.put_nowait(None)

        task = asyncio.ensure_future(run())
        self._answers.add(task)  # goes on behind a client that left, to count the request
        task.add_done_callback(self._answers.discard)
        try:
            while (message := await messages.get()) is not None:
                if message["type"] == "http.response.start":
                    headers = [*message["headers"], (REPLICA_HEADER, self._name.encode())]
                    message = {**message, "headers": headers}
                yield message
            await task
        finally:
            gone.set()

    async def record_routing_stats(self) -> State:
        """What this replica says of itself. The ingress asks, by a hook of Ray Serve that does not
        wait for room among the requests.
        """
        await self._start()
        service = self.service
        return State(name=self._name, health=service.health(), metrics=service.metrics.text())

    async def check_health(self) -> None:
        """Called by Ray Serve, which replaces a replica that raises.

        Raises:
            RuntimeError: the engine's thread has ended.
        """
        await self._start()
        if not self.service.worker.alive:
            raise RuntimeError("The engine's thread has ended.")

    async def close(self) -> None:
        """End the engine's thread. Ray Serve has waited for the requests before, and ends the
        process.
        """
        await self._running.aclose()

    async def _start(self) -> None:
        """Begin once, in the event loop of the requests, which the constructor has not."""
        if self._begun is None:
            lifespan = self._app.router.lifespan_context(self._app)
            self._begun = asyncio.ensure_future(self._enter(lifespan))
        await asyncio.shield(self._begun)

    async def _enter(self, lifespan: Any) -> None:
        await self._running.enter_async_context(lifespan)
        if self._announces:
            announcing = asyncio.ensure_future(announce(self._name))
            self._running.callback(announcing.cancel)


def _receiver(body: bytes, gone: asyncio.Event) -> Receive:
    """`receive` of a request that has come whole; then it waits for the client to leave."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if left:
            return left.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


def _own_name() -> str:
    from ray import serve

    return str(serve.get_replica_context().replica_id.unique_id)
