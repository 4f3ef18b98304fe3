"""Times of single calls on a GPU: captured in a graph, between events, with a cold L2.

As a step runs them: launches come from a graph, and what a call reads was last touched long ago. On
a CPU the same calls are timed by the clock, so that everything but the figures can be rehearsed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_FLUSHED = {"cuda": 512 * 2**20, "cpu": 2**20}  # several times the L2 of any GPU so far
_COPIED = {"cuda": 2048 * 2**20, "cpu": 2**22}
_COPIES = 10

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Microseconds of a call.

    Attributes:
        us, us_min: median and least.
        captured: launched from a graph; else one by one, and the host's time may be in it.
    """

    us: float
    us_min: float
    captured: bool


class Timer:
    """Times calls on one device.

    Args:
        device: of the tensors that the calls use.
        repeats: of every call, each behind a write that leaves nothing of its inputs in L2.
    """

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.device, self._repeats = device, repeats
        self._scratch = torch.empty(_FLUSHED[device.type], dtype=torch.int8, device=device)

    def time(self, call: Call) -> Timing:
        """Time `call`, which has run before."""
        run, captured = self._captured(call) if self.device.type == "cuda" else (call, False)
        times = self._events(run) if self.device.type == "cuda" else self._clock(run)
        return Timing(statistics.median(times), min(times), captured)

    def _captured(self, call: Call) -> tuple[Call, bool]:
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream(self.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                call()
        except RuntimeError:  # it reads something back
            torch.cuda.synchronize(self.device)
            return call, False
        graph.replay()
        return graph.replay, True

    def _events(self, run: Call) -> list[float]:
        pairs = []
        for _ in range(self._repeats):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._scratch.fill_(0)  # longer than the host takes to launch what follows
            begin.record()
            run()
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize(self.device)
        return [1e3 * begin.elapsed_time(end) for begin, end in pairs]

    def _clock(self, run: Call) -> list[float]:
        times = []
        for _ in range(self._repeats):
            self._scratch.fill_(0)
            begin = time.perf_counter()
            run()
            times.append(1e6 * (time.perf_counter() - begin))
        return times


def copy_bandwidth(device: torch.device) -> float:
    """GB/s (10^9 bytes, read and written ones counted) of a large copy within the device's memory:
    the best of several, which is what the shares are of.
    """
    source = torch.ones(_COPIED[device.type], dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    timer = Timer(device, _COPIES)

    def copy() -> None:
        target.copy_(source)

    copy()
    return 2 * source.nbytes / timer.time(copy).us_min / 1e3
