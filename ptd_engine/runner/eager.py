"""Steps run op by op, or replayed where the ops can be recorded: the production path on a CPU, the
reference for every other runner."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from ptd_engine.runner.base import ModelRunner
from ptd_engine.runner.prefill import PREFILL_CHUNK
from ptd_engine.runner.protocol import PromptObserver, Runner
from ptd_engine.runner.step import StepShape

__all__ = ["PREFILL_CHUNK", "EagerRunner", "PromptObserver", "Runner"]


class EagerRunner(ModelRunner):
    """Calls each op from Python; with ops that can be recorded, once for every number of rows.

    A step has exactly the shape of its plan (but for the rows of its node bucket).
    """

    @cached_property
    def _replays(self) -> dict[int, Callable[[], None]]:
        """Recorded passes by number of rows."""
        return {}

    def _run(self, n_bucket: int) -> None:
        header = self.buffers.header()
        shape = StepShape.of(header, n_bucket, self._mode(header))
        recorded = None if self.model.ops.record is None else self._replay
        self.step.run(shape, self._processing(n_bucket), recorded)

    def _replay(self, shape: StepShape) -> None:
        """`Step.forward` by way of `Ops.record`."""
        replay = self._replays.get(shape.rows)
        if replay is None:
            record = self.model.ops.record
            assert record is not None  # asked for above
            # The prefix grows under a recorded pass: its bound is the whole cache.
            within = StepShape(
                shape.rows, self.cache.capacity, shape.mode, shape.n_verify, shape.n_commit, False
            )
            replay = record(lambda: self.step.forward(within))
            self._replays[shape.rows] = replay
        replay()
