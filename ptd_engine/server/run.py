"""Running the application by uvicorn, from binding the port to the last request."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from ptd_engine.errors import ConfigError, DistributedError
from ptd_engine.llm import LLM
from ptd_engine.server import connections, logs
from ptd_engine.server.app import create_app
from ptd_engine.server.config import ServerConfig
from ptd_engine.server.service import Service

_log = logging.getLogger(__name__)

_GRACE_S = 5.0  # after the running request: to hand over its last parts


class Server(uvicorn.Server):
    """Says when it can be reached, and tells the engine about the end when the signal comes, not
    after the last connection.
    """

    def __init__(self, config: uvicorn.Config, model_name: str) -> None:
        super().__init__(config)
        self._model_name = model_name
        self._idle = connections.IdleConnections()

    @property
    def _service(self) -> Service:
        found: Service = self.config.app.state.service  # type: ignore[union-attr]
        return found

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn.Server.

        Raises:
            ConfigError: another process has begun to listen at the address since `bind`.
        """
        try:
            await super().startup(sockets)
        except OSError as error:
            await self.lifespan.shutdown()
            if not sockets:
                raise
            host, port = sockets[0].getsockname()[:2]
            raise _no_listening(host, port, error) from error
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            logs.event(_log, "serving", model=self._model_name, url=url)

    async def on_tick(self, counter: int) -> bool:
        """See uvicorn.Server, which calls it ten times a second: also closes connections that ask
        for nothing, and ends where the engine cannot serve any more.
        """
        if counter % 10 == 0:
            self._idle.check(self.server_state.connections)
        if self._service.worker.failed is not None:
            self.should_exit = True
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End gracefully; a second Ctrl-C ends at once. The exit status is that of a success."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn.Server: also the requests that wait are refused now."""
        stopping = asyncio.ensure_future(self._service.stop())
        await super().shutdown(sockets)
        await stopping


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address, not listening yet.

    Raises:
        ConfigError: the address is not this machine's, is taken, or needs rights.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise _no_listening(host, port, error) from error
    return made


def _no_listening(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(
        f"Cannot listen at {host} port {port}: {error.strerror or error}. Choose another --port (0 "
        "takes a free one) or --host."
    )


def make_server(app: FastAPI, config: ServerConfig) -> Server:
    """A server of an application of `create_app` that is not running yet."""
    settings = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=connections.MOST,
        timeout_graceful_shutdown=round(config.shutdown_timeout_s + _GRACE_S),
    )
    return Server(settings, config.model_name)


def serve(llm: LLM, config: ServerConfig, listener: socket.socket) -> None:
    """Serve until a signal ends it.

    Args:
        listener: of `bind`.

    Raises:
        DistributedError: a rank of tensor parallelism is gone, and no request can be served.
    """
    if not config.is_local and config.api_key is None:
        _log.warning(
            "The server is reachable from other machines and asks nobody for a key: set one "
            "(--api-key, PTD_ENGINE_API_KEY), or listen at 127.0.0.1."
        )
    connections.allow_files()
    app = create_app(llm, config)
    make_server(app, config).run(sockets=[listener])
    logs.event(_log, "ended")
    failed: DistributedError | None = app.state.service.worker.failed
    if failed is not None:
        raise failed
