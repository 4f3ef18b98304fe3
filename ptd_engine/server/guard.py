"""What is looked at before a request's body: who asks, from where, and how large it is."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ptd_engine.server.config import ServerConfig
from ptd_engine.server.failures import ApiError, respond

# What tells nothing about the model and lets nobody use it. The page asks for the key itself.
_OPEN_PATHS = ("/", "/health")
_OPEN_PREFIX = "/static/"

_TOO_LARGE = 413
# A client that still sends when the connection closes may not see why: so much is read and dropped.
_DISCARD_BYTES = 32 * 2**20
_DISCARD_S = 5.0


class Guard:
    """ASGI middleware that refuses requests by their headers, and bodies that grow too large."""

    def __init__(
        self, app: ASGIApp, config: ServerConfig, report: Callable[[str, ApiError], None]
    ) -> None:
        """Wrap an application.

        Args:
            report: told the path and why a request was refused.
        """
        self._app = app
        self._report = report
        self._config = config
        self._key = None if config.api_key is None else config.api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_origin(headers)
            self._check_key(scope["path"], headers)
            self._check_length(headers)
        except ApiError as error:
            self._report(scope["path"], error)
            if error.status == _TOO_LARGE and "expect" not in headers:
                await _discard(receive)
            await respond(error)(scope, receive, send)
            return
        await self._app(scope, self._limited(receive), send)

    def _check_origin(self, headers: Headers) -> None:
        """A browser on this machine must not serve pages of others: their requests name another
        origin, or a host that is none of ours.
        """
        host = headers.get("host", "")
        if self._config.is_local and not self._knows(host):
            raise ApiError(
                403,
                f"Host {host!r} is not allowed. A server at a loopback address is reached by "
                "address or as localhost; start it with --allowed-host for other names.",
                code="host_not_allowed",
            )
        origin = headers.get("origin")
        if origin is not None and _host_of(origin) != host:
            raise ApiError(
                403,
                f"Pages of {origin!r} may not use this server.",
                code="origin_not_allowed",
            )

    def _knows(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name == "localhost" or name in self._config.allowed_hosts:
                return True
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _check_key(self, path: str, headers: Headers) -> None:
        if self._key is None or path in _OPEN_PATHS or path.startswith(_OPEN_PREFIX):
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), self._key)
        if scheme.lower() != "bearer" or not right:
            raise ApiError(
                401,
                "The API key is missing or wrong: send the header 'Authorization: Bearer KEY'.",
                kind="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _check_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._config.max_body_bytes:
            raise self._too_large()

    def _too_large(self) -> ApiError:
        return ApiError(
            _TOO_LARGE,
            f"The body is larger than {self._config.max_body_bytes} bytes.",
            code="request_too_large",
            headers={"Connection": "close"},  # what is still to come is not read
        )

    def _limited(self, receive: Receive) -> Receive:
        """`receive` that counts: a body may come without a length, or with a wrong one."""
        taken = 0

        async def counting() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._config.max_body_bytes:
                if message.get("more_body", False):
                    await _discard(receive)
                raise self._too_large()
            return message

        return counting


def _host_of(origin: str) -> str | None:
    """The host of an Origin header; None where it has none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


async def _discard(receive: Receive) -> None:
    """Read a body that was refused to its end, or for as long and as much as is reasonable."""
    left = _DISCARD_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_S):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
