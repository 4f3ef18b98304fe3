"""What the endpoints share: the model, the worker, and the way of a request from body to answer."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from fastapi import Request
from fastapi.responses import Response

from ptd_engine.config import ResolvedParams
from ptd_engine.errors import PromptError, PTDError, shown
from ptd_engine.llm import LLM
from ptd_engine.outputs import ChunkStream, GenerationOutput
from ptd_engine.server import logs
from ptd_engine.server.answers import Answer, Endpoint, timings
from ptd_engine.server.config import ServerConfig
from ptd_engine.server.delivery import Delivery
from ptd_engine.server.failures import ApiError, JSONBody, respond
from ptd_engine.server.jobs import Job
from ptd_engine.server.prometheus import Metrics
from ptd_engine.server.protocol import ChatRequest, CompletionRequest
from ptd_engine.server.steps import StepNotes
from ptd_engine.server.worker import EngineWorker

_log = logging.getLogger(__name__)

_ID_PREFIX = {"chat": "chatcmpl", "completions": "cmpl"}
_CHARACTERS_A_TOKEN = 16  # more than a text has on average, unless it is made for that
_CUT_TOKENS = 64  # so many may a text have less than its beginning, by where that is cut
_PROMPT_FIELD = {"chat": "messages", "completions": "prompt"}


class Service:
    """One model served. Made before the event loop, started and stopped in it, once.

    Attributes:
        llm: serves nobody else meanwhile.
        worker: has its engine.
        metrics: what /metrics shows.
    """

    def __init__(self, llm: LLM, config: ServerConfig, metrics: Metrics) -> None:
        self.llm = llm
        self.config = config
        self.metrics = metrics
        self.started = int(time.time())
        self.worker = EngineWorker(llm.engine, metrics, config.max_queue)
        # Tokenizers and templates take their time, so they leave the event loop; one at a time,
        # since tokenizers may not be called by several threads.
        self._preparation = ThreadPoolExecutor(1, thread_name_prefix="ptd-prepare")

    def start(self) -> None:
        """Start the engine's thread."""
        self.worker.start()

    async def stop(self) -> None:
        """Refuse what waits, give the running request its time to end, then end the threads."""
        self.worker.drain()
        loop = asyncio.get_running_loop()
        limit = self.config.shutdown_timeout_s
        if not await loop.run_in_executor(None, self.worker.wait_idle, limit):
            logs.event(_log, "giving up the running request", after_s=limit)
            self.worker.cancel_running()
        await loop.run_in_executor(None, self.worker.close)
        self._preparation.shutdown(cancel_futures=True)

    def health(self) -> dict[str, str | int]:
        """What /health tells: `status` is "ok" while requests are served."""
        status = "ok" if self.worker.alive else "engine stopped"
        if self.worker.draining and self.worker.failed is None:
            status = "shutting down"
        running = int(self.worker.running is not None)
        return {"status": status, "running": running, "waiting": self.worker.waiting}

    def check_model(self, name: str | None) -> None:
        """Raise ApiError (404) unless `name` is the model that is served, or nothing."""
        if name not in (None, self.config.model_name):
            raise ApiError(
                404,
                f"The model {shown(name)} is not served here; {self.config.model_name!r} is.",
                param="model",
                code="model_not_found",
            )

    async def answer(
        self, http: Request, endpoint: Endpoint, request: ChatRequest | CompletionRequest
    ) -> Response:
        """Serve one request.

        Raises:
            ApiError: it is refused, or has no answer.
        """
        arrived = time.perf_counter()
        self.check_model(request.model)
        if request.stream_options is not None and not request.streams:
            raise ApiError(
                400, "stream_options is for streams: set stream.", param="stream_options"
            )
        self.worker.check_room()  # before the work of preparing it
        options = request.stream_options
        shows_steps = options is not None and bool(options.include_steps)
        job = await self._prepare(endpoint, request, arrived, shows_steps)
        self.worker.submit(job)
        limits = (self.config.request_timeout_s, request.timeout)
        delivery = Delivery(
            self.worker,
            job,
            Answer(endpoint, job, self.config.model_name, self.llm.tokenizer),
            min(limit for limit in limits if limit is not None),
        )
        report = self._reporter(endpoint, request, job)
        if request.streams:
            return delivery.stream(
                usage=options is not None and bool(options.include_usage),
                steps=StepNotes(self.llm.tokenizer) if shows_steps else None,
                done=report,
            )
        try:
            output = await delivery.whole(http.receive)
        except ApiError as error:
            report(error)
            return respond(error)
        report(output)
        return JSONBody(delivery.answer.whole(output), headers={"x-request-id": job.id})

    async def _prepare(
        self,
        endpoint: Endpoint,
        request: ChatRequest | CompletionRequest,
        arrived: float,
        trees: bool,
    ) -> Job:
        """Check everything about a request that can be checked before it runs."""

        def prepare() -> tuple[list[int], ResolvedParams, ChunkStream]:
            params = self.llm.resolve(request.sampling(self.config.default_max_tokens))
            ids = self._encode(endpoint, request)
            self._check_lengths(endpoint, len(ids), request.budget(None))
            return ids, params, self.llm.stream(ids, params, trees=trees)

        loop = asyncio.get_running_loop()
        try:
            ids, params, stream = await loop.run_in_executor(self._preparation, prepare)
        except PromptError as error:
            raise ApiError.of(error, _PROMPT_FIELD[endpoint]) from error
        except PTDError as error:
            raise ApiError.of(error) from error
        return Job(
            f"{_ID_PREFIX[endpoint]}-{uuid.uuid4().hex}",
            stream,
            params,
            prompt_len=len(ids),
            speculative=request.drafts,
            arrived=arrived,
        )

    def _check_lengths(self, endpoint: Endpoint, prompt_len: int, budget: int | None) -> None:
        limit = self.llm.engine.max_seq_len
        if prompt_len >= limit:
            raise self._too_long(endpoint, str(prompt_len))
        if budget is not None and budget > limit:
            raise ApiError(
                400,
                f"max_tokens={budget} is more than the context holds: at most {limit}, prompt "
                "included. Leave it out to go on to the limit.",
                param="max_tokens",
                code="context_length_exceeded",
            )

    def _too_long(self, endpoint: Endpoint, tokens: str) -> ApiError:
        limit = self.llm.engine.max_seq_len
        return ApiError(
            400,
            f"The prompt has {tokens} tokens; the limit is {limit - 1} (the context holds {limit}, "
            "one is needed for the output). Shorten it.",
            param=_PROMPT_FIELD[endpoint],
            code="context_length_exceeded",
        )

    def _encode(self, endpoint: Endpoint, request: ChatRequest | CompletionRequest) -> list[int]:
        if isinstance(request, CompletionRequest):
            prompt = request.one_prompt()
            if isinstance(prompt, str):
                self._check_beginning(endpoint, prompt)
            return self.llm.encode(prompt)
        text = self.llm.tokenizer.render_chat(
            request.conversation(),
            tools=request.offered_tools(),
            template_kwargs=request.chat_template_kwargs,
        )
        self._check_beginning(endpoint, text)
        return self.llm.tokenizer.encode(text, add_special_tokens=False)

    def _check_beginning(self, endpoint: Endpoint, text: str) -> None:
        """Refuse a text that is far too long by its beginning: the tokens of megabytes take seconds
        and hundreds of megabytes, for which all others would wait.
        """
        limit = self.llm.engine.max_seq_len
        beginning = text[: _CHARACTERS_A_TOKEN * limit]
        if len(beginning) == len(text):
            return
        tokens = len(self.llm.tokenizer.encode(beginning))
        if tokens > limit + _CUT_TOKENS:
            raise self._too_long(endpoint, f"more than {tokens - _CUT_TOKENS}")

    def _reporter(
        self, endpoint: Endpoint, request: ChatRequest | CompletionRequest, job: Job
    ) -> Callable[[GenerationOutput | ApiError], None]:
        """What counts and logs a request, once it has ended."""

        def report(ended: GenerationOutput | ApiError) -> None:
            metrics, times = self.metrics, job.times
            output = ended if isinstance(ended, GenerationOutput) else None
            status = ended.status if isinstance(ended, ApiError) else 200
            metrics.requests.labels(endpoint, status).inc()
            for histogram, seconds in (
                (metrics.queue_time, times.since_arrival(times.started)),
                (metrics.ttft, times.since_arrival(times.first_token)),
                (metrics.tpot, job.tpot_s),
                (metrics.latency, times.since_arrival(times.last_token) if output else None),
            ):
                if seconds is not None:
                    histogram.observe(seconds)
            if output is not None:
                metrics.note_output(job.prompt_len, output.stats)
            logs.event(
                _log,
                "request",
                id=job.id,
                endpoint=endpoint,
                status=status,
                stream=request.streams,
                user=request.user,
                speculative=job.speculative,
                prompt_tokens=job.prompt_len,
                completion_tokens=job.tokens,
                finish_reason=output.finish_reason if output else None,
                cancelled=job.cancelled,
                error=str(ended) if isinstance(ended, ApiError) else None,
                steps=output.stats.steps if output else None,
                accepted=output.stats.accepted if output else None,
                **timings(job),
            )

        return report
