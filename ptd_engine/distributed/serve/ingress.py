"""What stands before the replicas: looks at who asks, picks a replica, and passes its answer on."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ptd_engine.distributed.serve.conversation import SESSION_HEADER, conversation_of
from ptd_engine.distributed.serve.exposition import joined
from ptd_engine.distributed.serve.outgoing import Outgoing
from ptd_engine.distributed.serve.presence import Presence
from ptd_engine.distributed.serve.wire import sendable
from ptd_engine.server import ServerConfig, failures, logs
from ptd_engine.server.app import reporter
from ptd_engine.server.failures import ApiError, JSONBody
from ptd_engine.server.guard import Guard
from ptd_engine.server.parsing import read_body
from ptd_engine.server.prometheus import CONTENT_TYPE, Metrics

_GENERATING = ("/v1/chat/completions", "/v1/completions")


class Ingress:
    """Takes every request; a deployment of Ray Serve of its own, without a model."""

    def __init__(self, engines: Any, config: ServerConfig) -> None:
        """Join.

        Args:
            engines: handle of the deployment of `EngineReplica`.
            config: of the server.
        """
        logs.configure(config.log_format)
        self._engines = engines
        self._replicas = Presence()
        self._config = config
        self._metrics = Metrics()
        self._report = reporter(self._metrics)
        self._app = Guard(self._serve, config, self._report)

    async def __call__(self, request: Request) -> Response:
        """An answer that is made while it is sent."""
        return _Deferred(self._app)

    async def announce(self, name: str, actor: Any) -> None:
        """Called by a replica that is there."""
        self._replicas.note(name, actor)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        outgoing = Outgoing(send)
        try:
            if scope["path"] == "/metrics":
                await (await self._exposition())(scope, receive, outgoing)
            elif scope["path"] == "/health":
                await (await self._health())(scope, receive, outgoing)
            else:
                await self._relay(scope, receive, outgoing)
        except ApiError as error:
            self._report(scope["path"], error)
            await outgoing.fail(error, scope, receive)

    async def _relay(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await read_body(request)
        options: dict[str, Any] = {"stream": True}
        if scope["path"] in _GENERATING:
            key = conversation_of(request.headers.get(SESSION_HEADER), body)
            if key is not None:
                options["session_id"] = key
        limit = self._config.request_timeout_s
        try:
            # The replica has the same limit; this one holds while there is no replica, too.
            async with asyncio.timeout(limit):
                messages = self._engines.options(**options).answer.remote(sendable(scope), body)
                try:
                    async for message in messages:
                        await send(message)
                except BaseException:  # the client left, too
                    messages.cancel()
                    raise
        except TimeoutError:
            raise failures.timed_out(limit) from None
        except Exception as error:
            raise _meaning(error) from error

    async def _health(self) -> Response:
        """200 while a replica serves, else 503."""
        states = [state["health"] for state in await self._replicas.states()]
        found = [state for state in states if state["status"] == "ok"]
        document = {
            "status": "ok" if found else "no replica",
            "replicas": len(found),
            "running": sum(int(state["running"]) for state in found),
            "waiting": sum(int(state["waiting"]) for state in found),
        }
        return JSONBody(document, 200 if found else 503)

    async def _exposition(self) -> Response:
        states = await self._replicas.states()
        texts = [("ingress", self._metrics.text())]
        texts += [(state["name"], state["metrics"]) for state in states]
        return Response(joined(texts), headers={"Content-Type": CONTENT_TYPE})


class _Deferred(Response):
    """A response that an application makes."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _meaning(error: Exception) -> ApiError:
    """What an error on the way to a replica or back is to the client."""
    from ray.exceptions import RayActorError
    from ray.serve.exceptions import (
        BackPressureError,
        DeploymentUnavailableError,
        ReplicaUnavailableError,
    )

    if isinstance(error, RayActorError | ReplicaUnavailableError):
        return ApiError(
            503,
            "The replica that worked on the request has ended before the answer was whole. Send "
            "the request again.",
            kind="server_error",
            code="replica_lost",
            headers={"Retry-After": "1"},
        )
    if isinstance(error, BackPressureError):
        return ApiError(
            429,
            "All replicas are busy and the queue is full. Try again later.",
            kind="rate_limit_error",
            code="queue_full",
            headers={"Retry-After": "5"},
        )
    if isinstance(error, DeploymentUnavailableError):
        return ApiError(503, "There is no replica.", kind="server_error", code="no_replica")
    return failures.of_engine(error)
