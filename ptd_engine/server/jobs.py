"""One request on its way through the engine: what the event loop and the engine's thread share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Literal

from ptd_engine.config import ResolvedParams
from ptd_engine.outputs import Chunk, ChunkStream, GenerationOutput

Phase = Literal["queued", "prefill", "decode", "done"]
CancelReason = Literal["disconnect", "timeout", "shutdown"]

MOST_TREES = 256  # kept for a client that does not read


class RequestCancelledError(Exception):
    """The request was given up before its end."""

    def __init__(self, reason: CancelReason) -> None:
        super().__init__(reason)
        self.reason: CancelReason = reason


@dataclass
class Times:
    """Moments of a request in seconds of `time.perf_counter`; None: did not happen.

    Attributes:
        first_token, last_token: when the engine had them, whoever read them when.
    """

    arrived: float
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None

    def since_arrival(self, moment: float | None) -> float | None:
        """Seconds from the arrival to a moment."""
        return None if moment is None else moment - self.arrived


class Job:
    """A request that was checked, with its place for results.

    The event loop makes it and reads it (`chunks`); the engine's thread writes.

    Attributes:
        id: of the answer.
        stream: runs the request when it is read; closing it cancels.
        params: how it is decoded.
        prompt_len: its tokens.
        speculative: whether the server's drafter serves it.
        phase: what happens to it; "done" after its end, whichever.
        tokens: of the output so far.
        cancelled: why it was given up; None: it was not.
    """

    def __init__(
        self,
        identifier: str,
        stream: ChunkStream,
        params: ResolvedParams,
        *,
        prompt_len: int,
        speculative: bool,
        arrived: float,
    ) -> None:
        """Make it, in a running event loop."""
        self.id = identifier
        self.stream = stream
        self.params = params
        self.prompt_len = prompt_len
        self.speculative = speculative
        self.times = Times(arrived)
        self.phase: Phase = "queued"
        self.tokens = 0
        self.cancelled: CancelReason | None = None
        self._loop = asyncio.get_running_loop()
        self._results: asyncio.Queue[Chunk | Exception] = asyncio.Queue()

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token after the first one, by tokens and not by chunks; None below two."""
        first, last = self.times.first_token, self.times.last_token
        if first is None or last is None or self.tokens < 2:
            return None
        return (last - first) / (self.tokens - 1)

    def note(self, chunk: Chunk) -> float | None:
        """Count a chunk; returns the seconds since the one before, None for the first."""
        if not chunk.token_ids:
            return None
        now = time.perf_counter()
        before, self.times.last_token = self.times.last_token, now
        self.tokens += len(chunk.token_ids)
        if before is None:
            self.times.first_token = now
            return None
        return now - before

    def post(self, result: Chunk | Exception) -> None:
        """Hand over a chunk, or how the request ended without the last one; from any thread.

        A client that is far behind gets no more trees: they are for display, and would be most of
        what is kept for it.
        """
        if isinstance(result, Chunk) and result.tree and self._results.qsize() >= MOST_TREES:
            result = replace(result, tree=None)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._results.put_nowait, result)

    async def next(self, timeout_s: float | None = None) -> Chunk:
        """The next chunk; the last one carries the output.

        Raises:
            TimeoutError: none came in this time.
            RequestCancelledError: the request was given up.
            Exception: what the engine raised.
        """
        async with asyncio.timeout(timeout_s):
            result = await self._results.get()
        if isinstance(result, Exception):
            raise result
        return result

    async def chunks(self) -> AsyncIterator[Chunk]:
        """All chunks to the last one. Raises as `next`, without a timeout."""
        while True:
            chunk = await self.next()
            yield chunk
            if chunk.output is not None:
                return

    async def output(self) -> GenerationOutput:
        """The whole result. Raises as `chunks`."""
        async for chunk in self.chunks():
            if chunk.output is not None:
                return chunk.output
        raise AssertionError("the last chunk carries the output")
