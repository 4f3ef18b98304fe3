"""A twin of CUDA graphs on the CPU: a decode loop by capture and replay, loud where it is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from ptd_engine.testing.graph_recorder import record
from ptd_engine.testing.graph_recording import Recording, TwinError, poison


class GraphTwin:
    """A `ptd_engine.runner.GraphBackend` that records.

    As on a GPU a capture runs nothing, and a replay runs what was captured and no Python. What
    makes errors loud besides: before a replay all memory that a step has to write anyway is filled
    with garbage, and the step is recorded once more, with the plan that is staged now; where the
    two recordings differ, something of the host was baked in, or moved.

    Attributes:
        rewritten: what a step writes before it, or the host, reads it.
        captures, replays: calls so far.
    """

    def __init__(self, *, again: bool = True) -> None:
        """Make it.

        Args:
            again: record each step again before its replay. Off, a baked-in number shows in the
                results only.
        """
        self.rewritten: Callable[[], Iterable[Tensor]] = tuple
        self.captures = self.replays = 0
        self._again = again

    def run(self, step: Callable[[], None]) -> None:
        """See `GraphBackend`."""
        step()

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        """See `GraphBackend`.

        Raises:
            TwinError: the step does what no captured one can do.
        """
        captured = record(step)
        self.captures += 1

        def replay() -> None:
            if self._again:
                self._compare(captured, step)
            for tensor in self.rewritten():
                poison(tensor)
            captured.replay()
            self.replays += 1

        return replay

    def _compare(self, captured: Recording, step: Callable[[], None]) -> None:
        difference = captured.difference(record(step))
        if difference:
            raise TwinError(f"not what was captured: {difference}")
