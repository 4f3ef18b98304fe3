"""The application: its endpoints, and how errors become answers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from starlette.exceptions import HTTPException

import ptd_engine
from ptd_engine.llm import LLM
from ptd_engine.server import logs
from ptd_engine.server.config import ServerConfig
from ptd_engine.server.failures import ApiError, JSONBody, of_engine, respond
from ptd_engine.server.guard import Guard
from ptd_engine.server.parsing import read_request
from ptd_engine.server.prometheus import CONTENT_TYPE, Metrics
from ptd_engine.server.protocol import ChatRequest, CompletionRequest
from ptd_engine.server.service import Service

_log = logging.getLogger(__name__)

_PAGE_HEADERS = {
    # The page takes nothing from anywhere else, and shows what a model wrote.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def create_app(llm: LLM, config: ServerConfig | None = None) -> FastAPI:
    """An application that serves a model; run it by any ASGI server, in one process.

    It may be started again after its end, also in another event loop. `app.state.service` is the
    running service.

    Args:
        llm: serves nobody else meanwhile.
        config: limits, names, access.
    """
    config = ServerConfig() if config is None else config
    metrics = Metrics()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = app.state.service = Service(llm, config, metrics)
        service.start()
        try:
            yield
        finally:
            await service.stop()

    app = FastAPI(
        title="ptd_engine",
        version=ptd_engine.__version__,
        lifespan=lifespan,
        docs_url=None,  # its page would load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,  # a redirect would name a host that the client has named
    )
    report = reporter(metrics)
    _add_errors(app, report)
    _add_generation(app)
    _add_information(app, config, metrics)
    _add_page(app)
    app.add_middleware(Guard, config=config, report=report)
    return app


def _service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


def _add_generation(app: FastAPI) -> None:
    @app.post("/v1/chat/completions", openapi_extra=_body(ChatRequest))
    async def chat_completions(http: Request) -> Response:
        """Answer a conversation."""
        request = await read_request(http, ChatRequest)
        return await _service(http).answer(http, "chat", request)

    @app.post("/v1/completions", openapi_extra=_body(CompletionRequest))
    async def completions(http: Request) -> Response:
        """Continue a text."""
        request = await read_request(http, CompletionRequest)
        return await _service(http).answer(http, "completions", request)


def _add_information(app: FastAPI, config: ServerConfig, metrics: Metrics) -> None:
    def model_card(service: Service) -> dict[str, object]:
        return {
            "id": config.model_name,
            "object": "model",
            "created": service.started,
            "owned_by": "ptd_engine",
            "max_model_len": service.llm.engine.max_seq_len,
        }

    @app.get("/v1/models")
    async def models(http: Request) -> Response:
        """The one model."""
        return JSONBody({"object": "list", "data": [model_card(_service(http))]})

    @app.get("/v1/models/{name:path}")
    async def model(http: Request, name: str) -> Response:
        """The model, by its name."""
        _service(http).check_model(name)
        return JSONBody(model_card(_service(http)))

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health(http: Request) -> Response:
        """Whether requests are served: 200, else 503."""
        document = _service(http).health()
        return JSONBody(document, 200 if document["status"] == "ok" else 503)

    @app.get("/version")
    async def version() -> Response:
        """The package's version."""
        return JSONBody({"version": ptd_engine.__version__})

    @app.get("/metrics")
    async def prometheus_metrics() -> Response:
        """Prometheus' text format."""
        return Response(metrics.text(), headers={"Content-Type": CONTENT_TYPE})


def _add_page(app: FastAPI) -> None:
    folder = Path(str(files("ptd_engine.server") / "static"))

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(folder / "index.html", headers=_PAGE_HEADERS)

    app.mount("/static", StaticFiles(directory=folder))


def reporter(metrics: Metrics) -> Callable[[str, ApiError], None]:
    """What counts and logs requests that were refused before they had a place in the queue."""
    known = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}

    def report(path: str, error: ApiError) -> None:
        # A label of few values, whatever paths are asked for.
        metrics.requests.labels(known.get(path, "other"), error.status).inc()
        # Not the message: it may hold what the client wrote.
        logs.event(_log, "refused", path=path, status=error.status, param=error.param)

    return report


def _add_errors(app: FastAPI, report: Callable[[str, ApiError], None]) -> None:
    def refuse(http: Request, error: ApiError) -> Response:
        report(http.url.path, error)
        return respond(error)

    @app.exception_handler(ApiError)
    async def refused(http: Request, error: ApiError) -> Response:
        return refuse(http, error)

    @app.exception_handler(HTTPException)
    async def no_endpoint(http: Request, error: HTTPException) -> Response:
        message = f"{http.method} {http.url.path}: {error.detail}. /openapi.json lists what is."
        headers = dict(error.headers or {})
        return refuse(http, ApiError(error.status_code, message, headers=headers))

    @app.exception_handler(Exception)
    async def failed(http: Request, error: Exception) -> Response:
        return refuse(http, of_engine(error))


def _body(kind: type[BaseModel]) -> dict[str, object]:
    """A request's schema for /openapi.json; bodies are read and checked by `read_request`."""
    schema = kind.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
