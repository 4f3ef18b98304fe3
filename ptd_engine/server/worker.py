"""The one thread that drives the engine, and the bounded queue in front of it.

An engine serves one request at a time, so requests wait in the order of their arrival. The thread
never waits for a client: what it makes is kept in the job until the client reads it, which the
context limit bounds.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque

from ptd_engine import _core
from ptd_engine.drafters import make_drafter
from ptd_engine.engine import Engine
from ptd_engine.errors import DistributedError
from ptd_engine.server.failures import ApiError, shutting_down
from ptd_engine.server.jobs import CancelReason, Job, RequestCancelledError
from ptd_engine.server.prometheus import Metrics

_log = logging.getLogger(__name__)

_FIRST_GUESS_S = 5.0  # of a request's time, before one was served
_MOST_RETRY_S = 120


class EngineWorker:
    """Serves jobs one after another."""

    def __init__(self, engine: Engine, metrics: Metrics, max_queue: int) -> None:
        """Prepare; `start` starts the thread.

        Args:
            engine: nobody else uses it while the worker lives.
            metrics: counts what happens.
            max_queue: jobs that may wait behind the one that runs.
        """
        self._engine = engine
        self._metrics = metrics
        self._max_queue = max_queue
        self._drafter = engine.drafter
        self._plain: _core.Drafter = make_drafter("none", device_type="cpu")
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._draining = self._ending = False
        self._failed: DistributedError | None = None
        self._mean_s = _FIRST_GUESS_S
        self._thread = threading.Thread(target=self._run, name="ptd-engine", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def failed(self) -> DistributedError | None:
        """Why no request can be served any more: the engine has lost a part of its model."""
        return self._failed

    @property
    def draining(self) -> bool:
        """Whether new jobs are refused since the server ends."""
        return self._draining

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._waiting)

    @property
    def running(self) -> Job | None:
        """The job that has the engine."""
        return self._running

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Put a job into the queue.

        Raises:
            ApiError: 429 if it is full, 503 if the server ends.
        """
        with self._changed:
            self._check_room()
            self._waiting.append(job)
            self._metrics.waiting.set(len(self._waiting))
            self._changed.notify_all()

    def check_room(self) -> None:
        """Raise as `submit` would now."""
        with self._changed:
            self._check_room()

    def cancel(self, job: Job, reason: CancelReason) -> None:
        """Give up a job: a waiting one leaves the queue, a running one the engine, after the step
        (of a prefill, the part) that runs. Does nothing after the job's end or a second time.
        """
        with self._changed:
            if job.phase == "done" or job.cancelled is not None:
                return
            job.cancelled = reason
            self._metrics.cancelled.labels(reason, job.phase).inc()
            if job in self._waiting:
                self._waiting.remove(job)
                self._metrics.waiting.set(len(self._waiting))
                self._end(job, RequestCancelledError(reason))
        job.stream.close()

    def drain(self) -> None:
        """Refuse new jobs and those that wait; the running one goes on."""
        with self._changed:
            self._draining = True
            waiting = tuple(self._waiting)
        for job in waiting:
            self.cancel(job, "shutdown")

    def cancel_running(self) -> None:
        """Give up the running job, because the server ends."""
        job = self._running
        if job is not None:
            self.cancel(job, "shutdown")

    def close(self) -> None:
        """Give up everything, end the thread, and leave the engine as it was found."""
        self.drain()
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self.cancel_running()
        self._thread.join()
        self._engine.drafter = self._drafter

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no job runs; false if one still does."""
        with self._changed:
            return self._changed.wait_for(lambda: self._running is None, timeout_s)

    def _check_room(self) -> None:
        if self._draining:
            raise shutting_down()
        ahead = len(self._waiting) + (self._running is not None)
        if ahead > self._max_queue:
            self._metrics.refused.inc()
            seconds = min(_MOST_RETRY_S, max(1, math.ceil(self._mean_s * ahead / 2)))
            raise ApiError(
                429,
                f"The server is busy: {ahead} requests are running or waiting. Try again in about "
                f"{seconds} s.",
                kind="rate_limit_error",
                code="queue_full",
                headers={"Retry-After": str(seconds)},
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ending or self._waiting)
                if not self._waiting:
                    return
                job = self._running = self._waiting.popleft()
                self._metrics.waiting.set(len(self._waiting))
                job.phase = "prefill"
                job.times.started = time.perf_counter()
            self._metrics.running.set(1)
            ended = self._serve(job)
            with self._changed:
                self._running = None
                self._end(job, ended)
                self._changed.notify_all()
            self._metrics.running.set(0)
            self._metrics.kv_use.set(0.0)
            if isinstance(ended, DistributedError):
                self._failed = ended
                self.drain()
                return

    def _serve(self, job: Job) -> Exception | None:
        """Run a job; returns how it ended if it has no output."""
        finished = False
        try:
            self._engine.drafter = self._drafter if job.speculative else self._plain
            with job.stream as chunks:
                for chunk in chunks:
                    waited = job.note(chunk)
                    self._metrics.note_step(len(chunk.token_ids), waited)
                    rows = max(0, job.prompt_len + job.tokens - 1)
                    self._metrics.kv_use.set(rows / self._engine.max_seq_len)
                    job.phase = "decode"
                    if chunk.output is not None:
                        finished = True
                        job.phase = "done"  # nobody can cancel it any more
                    job.post(chunk)
        except Exception as error:
            return error
        except BaseException as error:  # a drafter's SystemExit must not end the thread in silence
            return RuntimeError(f"{type(error).__name__} in the engine's thread: {error}")
        return None if finished else RequestCancelledError(job.cancelled or "shutdown")

    def _end(self, job: Job, how: Exception | None) -> None:
        job.phase = "done"
        job.times.finished = now = time.perf_counter()
        if job.times.started is not None and how is None:
            self._mean_s += 0.2 * (now - job.times.started - self._mean_s)
        if how is not None:
            job.post(how)
