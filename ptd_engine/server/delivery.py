"""Handing an answer to its client, and giving the request up when the client leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from ptd_engine.outputs import Chunk, GenerationOutput
from ptd_engine.server import failures
from ptd_engine.server.answers import Answer
from ptd_engine.server.failures import ApiError
from ptd_engine.server.jobs import Job, RequestCancelledError
from ptd_engine.server.steps import StepNotes
from ptd_engine.server.worker import EngineWorker

KEEP_ALIVE_S = 15.0  # of silence; then a comment tells client and proxies that the line is open
STALL_S = 120.0  # a client that takes nothing for so long is given up

_EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the parts
]


async def _departure(receive: Receive) -> None:
    """Returns when the client has closed the connection. The body has been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _race(work: asyncio.Task[None], receive: Receive) -> bool:
    """Wait for the work; false if the client left before. Whatever happens, neither goes on."""
    gone = asyncio.ensure_future(_departure(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        return work.done()
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


class Delivery:
    """The answer to one request, whole or as a stream.

    Attributes:
        job: the request, submitted.
        answer: renders it.
    """

    def __init__(self, worker: EngineWorker, job: Job, answer: Answer, timeout_s: float) -> None:
        """Join what is needed.

        Args:
            timeout_s: from the request's arrival to its last token.
        """
        self.job = job
        self.answer = answer
        self._worker = worker
        self._timeout_s = timeout_s
        self._deadline = job.times.arrived + timeout_s

    async def whole(self, receive: Receive) -> GenerationOutput:
        """Wait for the whole output.

        Raises:
            ApiError: the client left, time ran out, the server ends, or the engine failed.
        """
        found: list[GenerationOutput] = []

        async def work() -> None:
            while not found:
                chunk = await self.next()
                if chunk.output is not None:
                    found.append(chunk.output)

        task = asyncio.ensure_future(work())
        try:
            if not await _race(task, receive):
                raise ApiError(failures.CLIENT_GONE, "The client left.")
            task.result()
        finally:
            self.abandon()
        return found[0]

    def stream(
        self,
        *,
        usage: bool,
        steps: StepNotes | None,
        done: Callable[[GenerationOutput | ApiError], None],
    ) -> EventStream:
        """The answer as server-sent events.

        Args:
            usage: whether the last chunk tells of it.
            steps: describes the steps; None: nobody asked.
            done: told how it ended.
        """
        return EventStream(self, usage, steps, done)

    def abandon(self) -> None:
        """Give the request up, unless it has ended."""
        self._worker.cancel(self.job, "disconnect")

    async def next(self, within_s: float | None = None) -> Chunk:
        """The next chunk.

        Raises:
            TimeoutError: none came `within_s`.
            ApiError: the request ended without its output.
        """
        left = self._deadline - time.perf_counter()
        wait = left if within_s is None else min(left, within_s)
        try:
            return await self.job.next(max(0.0, wait))
        except TimeoutError:
            if within_s is not None and within_s < left:
                raise
            self._worker.cancel(self.job, "timeout")
            raise failures.timed_out(self._timeout_s) from None
        except RequestCancelledError:
            raise failures.shutting_down() from None
        except Exception as error:
            raise failures.of_engine(error) from error


class EventStream(Response):
    """A stream whose status is decided by what comes first: an error that comes before any part is
    an ordinary error response, one that comes later is an event.
    """

    def __init__(
        self,
        delivery: Delivery,
        usage: bool,
        steps: StepNotes | None,
        done: Callable[[GenerationOutput | ApiError], None],
    ) -> None:
        super().__init__()
        self._delivery = delivery
        self._usage = usage
        self._steps = steps
        self._done = done
        self._ended: GenerationOutput | ApiError = ApiError(failures.CLIENT_GONE, "The client left")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end or until the client leaves."""
        task = asyncio.ensure_future(self._deliver(scope, receive, send))
        try:
            if await _race(task, receive):
                task.result()
        finally:
            self._delivery.abandon()
            self._done(self._ended)

    async def _deliver(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False
        try:
            async for event in self._events():
                if not begun:
                    begun = True
                    headers = [*_EVENT_STREAM, (b"x-request-id", self._delivery.job.id.encode())]
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                async with asyncio.timeout(STALL_S):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        except ApiError as error:
            self._ended = error
            if not begun:
                await failures.respond(error)(scope, receive, send)
                return
            event = b"data: " + failures.encode(error.body) + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": True})
        except TimeoutError:  # the client takes nothing; the connection ends unfinished
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        answer, output = self._delivery.answer, None
        opening = answer.endpoint == "chat"
        while output is None:
            try:
                chunk = await self._delivery.next(KEEP_ALIVE_S)
            except TimeoutError:
                yield b": waiting\n\n"
                continue
            if opening:
                opening = False
                yield self._event(answer.role())
            output = chunk.output
            if chunk.text or (chunk.token_ids and (chunk.logprobs or self._steps)):
                part = answer.part(chunk.text, chunk.logprobs)
                if self._steps is not None and chunk.token_ids:
                    part["step"] = self._steps.of(chunk)
                yield self._event(part)
        self._ended = output
        yield self._event(answer.end(output))
        if self._usage:
            yield b"data: " + failures.encode(answer.usage(output)) + b"\n\n"
        yield b"data: [DONE]\n\n"

    def _event(self, document: dict[str, object]) -> bytes:
        if self._usage:
            document["usage"] = None  # as OpenAI: present in every chunk, filled in the last
        return b"data: " + failures.encode(document) + b"\n\n"
