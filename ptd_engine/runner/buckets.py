"""Sizes that steps are padded to, so that few shapes serve all of them: a captured graph has one.

A *node bucket* is a number of rows; a step is padded to the next one. A *kv bucket* is a number of
committed rows; the attention's grid covers it, and programs behind the true prefix leave at once.
Both cost time where a step is smaller, and each costs a capture, so they are chosen from what rows
cost and from how often each number of rows is asked for: `choose_buckets`. `python -m bench step`
does it and states the waste of the defaults here (docs/simulate.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ptd_engine.errors import ConfigError

# Where the kernels' tiles end (64 rows a product, 16 a matrix instruction), and few between.
NODE_EDGES = (1, 8, 16, 32, 48, 64, 96, 128, 192, 256)
_FIRST_KV = 2048
_KV_FACTOR = 4


def default_node_buckets(max_nodes: int) -> tuple[int, ...]:
    """Rising row counts that end with `max_nodes`: the largest step is padded by nothing.

    Args:
        max_nodes: rows of the largest step, root included.

    Raises:
        ConfigError: below 1.
    """
    if max_nodes < 1:
        raise ConfigError.for_field("max_nodes", max_nodes, "an integer >= 1")
    return (*(edge for edge in NODE_EDGES if edge < max_nodes), max_nodes)


def default_kv_buckets(max_seq_len: int) -> tuple[int, ...]:
    """Rising bounds of `prefix_len` that end with `max_seq_len`.

    A step of the node bucket N in the kv bucket P has kv_bound = P + N at most: the rows of its
    tree lie behind the prefix.

    Args:
        max_seq_len: prompt and output together.

    Raises:
        ConfigError: below 1.
    """
    if max_seq_len < 1:
        raise ConfigError.for_field("max_seq_len", max_seq_len, "an integer >= 1")
    bounds, bound = [], _FIRST_KV
    while bound < max_seq_len:
        bounds.append(bound)
        bound *= _KV_FACTOR
    return (*bounds, max_seq_len)


def bucket_of(buckets: Sequence[int], size: int) -> int:
    """The smallest of `buckets` (rising) that holds `size`.

    Raises:
        ConfigError: none does.
    """
    for bucket in buckets:
        if bucket >= size:
            return bucket
    raise ConfigError.for_field("size", size, f"at most {buckets[-1] if buckets else 0}")


@dataclass(frozen=True, slots=True)
class Waste:
    """What padding to buckets costs over a run.

    Attributes:
        padded_rows: share of all computed rows that nobody asked for.
        extra_time: time of the padded steps over that of exact ones, less 1.
    """

    padded_rows: float
    extra_time: float


def bucket_waste(
    buckets: Sequence[int], counts: Mapping[int, float], cost: Callable[[int], float]
) -> Waste:
    """The waste of `buckets` where steps of n rows were asked for `counts[n]` times.

    Args:
        buckets: rising; the last holds every size.
        counts: size -> how often; at least one size, each above 0.
        cost: time of an exact step of so many rows, above 0.
    """
    asked = sum(count * size for size, count in counts.items())
    computed = sum(count * bucket_of(buckets, size) for size, count in counts.items())
    exact = sum(count * cost(size) for size, count in counts.items())
    padded = sum(count * cost(bucket_of(buckets, size)) for size, count in counts.items())
    return Waste(1 - asked / computed, padded / exact - 1)


def choose_buckets(
    counts: Mapping[int, float], cost: Callable[[int], float], most: int, largest: int
) -> tuple[int, ...]:
    """The at most `most` buckets that make the run of `counts` shortest; fewer where more gain
    nothing.

    Exact, by dynamic programming over where a bucket ends. Only sizes behind which the cost rises
    come into question: within a tile the largest size costs what the smallest does.

    Args:
        counts: size -> how often it is asked for.
        cost: time of a step of so many rows; never falls with them.
        most: captures that may be spent, at least 1.
        largest: the last bucket; no size is above it.

    Raises:
        ConfigError: `most` below 1, or a size beyond `largest`.
    """
    if most < 1:
        raise ConfigError.for_field("most", most, "an integer >= 1")
    if not all(1 <= size <= largest for size in counts):
        raise ConfigError.for_field("counts", sorted(counts), f"sizes of 1 to {largest}")
    costs = [cost(size) for size in range(1, largest + 1)]
    ends = [n for n in range(1, largest) if costs[n] > costs[n - 1]] + [largest]
    below = [sum(count for size, count in counts.items() if size <= end) for end in ends]
    # best[i]: least time of all sizes up to ends[i] with the buckets so far, the last at ends[i].
    best = [below[i] * costs[end - 1] for i, end in enumerate(ends)]
    chosen: list[tuple[int, ...]] = [(end,) for end in ends]
    for _ in range(most - 1):
        better, longer = list(best), list(chosen)
        for i, end in enumerate(ends):
            for j in range(i):
                time = best[j] + (below[i] - below[j]) * costs[end - 1]
                if time < better[i]:
                    better[i], longer[i] = time, (*chosen[j], end)
        best, chosen = better, longer
    return chosen[-1]
