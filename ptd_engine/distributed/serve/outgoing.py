"""The way of an answer to its client, on which it may turn into an error."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from ptd_engine.server import failures
from ptd_engine.server.failures import ApiError

_STREAM = "text/event-stream"


class Outgoing:
    """`send` of ASGI that keeps status and headers back until there is a body.

    An answer in one piece so is sent whole or not at all, and a stream has begun only when its
    first event has come.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._begun = self._streams = False

    async def __call__(self, message: Message) -> None:
        """See ASGI."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._start is not None and not self._begun:
            kind = Headers(raw=self._start["headers"]).get("content-type", "")
            self._streams = kind.startswith(_STREAM)
            self._begun = True
            await self._send(self._start)
        await self._send(message)

    async def fail(self, error: ApiError, scope: Scope, receive: Receive) -> None:
        """End with an error: a response of its own, or an event of a stream that has begun.

        Raises:
            ApiError: neither is possible any more; the connection has to break.
        """
        if not self._begun:
            await failures.respond(error)(scope, receive, self._send)
            return
        if not self._streams:
            raise error
        body = b"data: " + failures.encode(error.body) + b"\n\n"
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
