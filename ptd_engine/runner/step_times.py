"""What a step takes by its number of rows and the length of its prefix, measured on the runner."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptd_engine import _core
from ptd_engine.runner.protocol import Runner

_SIZES = (1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)
_FEW_SIZES = (1, 4, 16, 64, 256)  # where a step takes long
_LONG_STEP_S = 0.1
_SHORT_PREFIX = 32
_LONG_PREFIX = 1024
_LIMIT_S = 1.0
_MOST_REPEATS = 9
_HOPELESS = 5.0  # a step that costs this many single rows is never worth it, nor is a larger one


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step.

    Attributes:
        rows: sizes, rising from 1.
        seconds: of each size behind an empty prefix.
        seconds_per_token: what each token of the prefix adds.
        max_rows: the largest step of the runner it was measured on. Its own time is missing where
            smaller steps cost too much to pay already.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    seconds_per_token: tuple[float, ...]
    max_rows: int


def measure_step_times(
    runner: Runner, max_seq_len: int, vocab_size: int, limit_s: float = _LIMIT_S
) -> StepTimes:
    """Run steps of several sizes, in turns, over whatever the cache holds.

    Only between requests: rows of the cache are overwritten.

    Args:
        runner: the largest size is its `max_nodes`.
        max_seq_len: positions that its model can be asked for.
        vocab_size: ids below it stand for tokens.
        limit_s: seconds that rounds of all sizes behind a short prefix may take, at least two
            of them; warming up and a long prefix come on top, and take about as long again.
    """
    longest = max(0, max_seq_len - 2)
    short, long = min(_SHORT_PREFIX, longest), min(_LONG_PREFIX, longest)
    bench = _Bench(runner, vocab_size)
    first = [bench.time(1, short) for _ in range(3)][-1]
    wanted = _FEW_SIZES if first > _LONG_STEP_S else _SIZES
    largest = runner.max_nodes
    sizes, round_s = bench.affordable(sorted({*(n for n in wanted if n < largest), largest}), short)
    repeats = min(_MOST_REPEATS, max(2, round(limit_s / round_s)))
    best = bench.typical(sizes, short, repeats)
    if long >= 4 * max(short, 1):
        few = tuple(sorted({1, sizes[len(sizes) // 2], sizes[-1]}))
        longer = bench.typical(few, long, repeats)
        slopes = [
            max(0.0, (far - best[sizes.index(n)]) / (long - short))
            for n, far in zip(few, longer, strict=True)
        ]
        per_token = [float(np.interp(n, few, slopes)) for n in sizes]
    else:
        per_token = [0.0] * len(sizes)
    seconds = [
        max(total - short * slope, 0.5 * total)
        for total, slope in zip(best, per_token, strict=True)
    ]
    return StepTimes(sizes, tuple(seconds), tuple(per_token), largest)


class _Bench:
    """Runs steps of chosen sizes on a runner."""

    def __init__(self, runner: Runner, vocab_size: int) -> None:
        self._runner = runner
        self._vocab_size = vocab_size
        self._plans: dict[tuple[int, int], tuple[npt.NDArray[np.uint8], int]] = {}

    def time(self, rows: int, prefix: int) -> float:
        """Seconds from launch to result."""
        key = rows, prefix
        if key not in self._plans:
            self._plans[key] = self._plan(rows, prefix)
        block, bucket = self._plans[key]
        self._runner.staging[: block.size] = block
        start = time.perf_counter()
        self._runner.launch(bucket)
        self._runner.wait()
        return time.perf_counter() - start

    def affordable(self, sizes: Sequence[int], prefix: int) -> tuple[tuple[int, ...], float]:
        """The sizes up to the first one that can never pay, and the seconds of a round of them.

        It warms up besides: a size's first step may record its operations.
        """
        taken: list[int] = []
        times: list[float] = []
        for size in sizes:
            self.time(size, prefix)
            taken.append(size)
            times.append(self.time(size, prefix))
            if times[-1] > _HOPELESS * times[0]:
                break
        return tuple(taken), sum(times)

    def typical(self, sizes: Sequence[int], prefix: int, repeats: int) -> list[float]:
        """The lower quartile of each size, or of a larger one that took less.

        What disturbs a step only makes it longer, and no step takes longer than one with more rows.
        """
        times: list[list[float]] = [[] for _ in sizes]
        for _ in range(repeats):
            for i, size in enumerate(sizes):
                times[i].append(self.time(size, prefix))
        typical = [sorted(taken)[(len(taken) - 1) // 4] for taken in times]
        for i in reversed(range(len(typical) - 1)):
            typical[i] = min(typical[i], typical[i + 1])
        return typical

    def _plan(self, rows: int, prefix: int) -> tuple[npt.NDArray[np.uint8], int]:
        """A root with children, packed, and its bucket. Rows differ, as those of a real step do."""
        tree = _core.TreeBuilder(0, max_nodes=rows)
        for child in range(1, rows):
            tree.add_candidate(0, child * 101 % self._vocab_size)
        buckets = self._runner.node_buckets
        bucket = min((b for b in buckets if b >= rows), default=rows)
        block = tree.pack(prefix, n_bucket=bucket, max_path=self._runner.max_path)
        return np.frombuffer(block, dtype=np.uint8), bucket
