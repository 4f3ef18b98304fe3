"""What a step takes by its number of rows and the length of its prefix, measured on the runner."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptd_engine import _core
from ptd_engine.runner.eager import Runner

_SIZES = (1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)
_FEW_SIZES = (1, 4, 16, 64, 256)  # where a step takes long
_LONG_STEP_S = 0.1
_SHORT_PREFIX = 32
_LONG_PREFIX = 1024
_LIMIT_S = 1.0  # of all that is measured, roughly
_MOST_REPEATS = 9
_HOPELESS = 5.0  # a step that costs this many single rows is never worth it, nor is a larger one


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step.

    Attributes:
        rows: sizes, rising from 1.
        seconds: of each size behind an empty prefix.
        seconds_per_token: what each token of the prefix adds.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    seconds_per_token: tuple[float, ...]

    def of(self, rows: int, prefix_len: int = 0) -> float:
        """Seconds of a step, interpolated between the sizes that were measured."""
        base = np.interp(rows, self.rows, self.seconds)
        return float(base + prefix_len * np.interp(rows, self.rows, self.seconds_per_token))


def measure_step_times(runner: Runner, max_seq_len: int, limit_s: float = _LIMIT_S) -> StepTimes:
    """Run steps of several sizes, in turns, over whatever the cache holds; takes about `limit_s`.

    Only between requests: rows of the cache are overwritten.

    Args:
        runner: the largest size is its `max_nodes`.
        max_seq_len: positions that its model can be asked for.
        limit_s: seconds; a round of all sizes is run twice in any case, of a slow model's few.
    """
    longest = max(0, max_seq_len - 2)
    short, long = min(_SHORT_PREFIX, longest), min(_LONG_PREFIX, longest)
    first = [_time(runner, *_star(runner, 1, short)) for _ in range(3)][-1]
    wanted = _FEW_SIZES if first > _LONG_STEP_S else _SIZES
    largest = runner.max_nodes
    sizes, round_s = _affordable(
        runner, sorted({*(n for n in wanted if n < largest), largest}), short
    )
    repeats = min(_MOST_REPEATS, max(2, round(limit_s / round_s)))
    best = _least(runner, sizes, short, repeats)
    if long >= 4 * max(short, 1):
        few = tuple(sorted({1, sizes[len(sizes) // 2], sizes[-1]}))
        longer = _least(runner, few, long, repeats)
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
    return StepTimes(sizes, tuple(seconds), tuple(per_token))


def _affordable(runner: Runner, sizes: Sequence[int], prefix: int) -> tuple[tuple[int, ...], float]:
    """The sizes up to the first one that can never pay, and the seconds of a round of them.

    It warms up besides: a size's first step may record its operations.
    """
    taken: list[int] = []
    times: list[float] = []
    for size in sizes:
        plan = _star(runner, size, prefix)
        _time(runner, *plan)
        taken.append(size)
        times.append(_time(runner, *plan))
        if times[-1] > _HOPELESS * times[0]:
            break
    return tuple(taken), sum(times)


def _least(runner: Runner, sizes: Sequence[int], prefix: int, repeats: int) -> list[float]:
    """The shortest time of each size or of a larger one.

    What disturbs a step only makes it longer, and no step takes longer than one with more rows.
    """
    plans = [_star(runner, size, prefix) for size in sizes]
    best = [float("inf")] * len(sizes)
    for _ in range(repeats):
        for i, plan in enumerate(plans):
            best[i] = min(best[i], _time(runner, *plan))
    for i in reversed(range(len(best) - 1)):
        best[i] = min(best[i], best[i + 1])
    return best


def _star(runner: Runner, rows: int, prefix: int) -> tuple[npt.NDArray[np.uint8], int]:
    """A packed plan of the root and its children, and its bucket. What they are does not matter."""
    tree = _core.TreeBuilder(0, max_nodes=rows)
    for _ in range(rows - 1):
        tree.add_candidate(0, 0)
    bucket = min((b for b in runner.node_buckets if b >= rows), default=rows)
    block = tree.pack(prefix, n_bucket=bucket, max_path=runner.max_path)
    return np.frombuffer(block, dtype=np.uint8), bucket


def _time(runner: Runner, block: npt.NDArray[np.uint8], bucket: int) -> float:
    runner.staging[: block.size] = block
    start = time.perf_counter()
    runner.launch(bucket)
    runner.wait()
    return time.perf_counter() - start
