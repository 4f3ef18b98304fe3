"""Which buckets a run would have wanted: `step` and `simulate` ask with their costs of a step."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.acceptance import read
from bench.step_model import StepModel
from ptd_engine.errors import ConfigError
from ptd_engine.runner.buckets import (
    bucket_of,
    bucket_waste,
    choose_buckets,
    default_kv_buckets,
    default_node_buckets,
)

ROWS_ASKED = "simulate/rows_asked.json"
_KV_UNIT, _KV_ROWS = 256, 64
MOST_BUCKETS = 8  # of rows: each is captured once for every kv bucket


def counts_of(name: str = ROWS_ASKED) -> dict[int, int]:
    """Rows of a step -> how often a decode run asked for them, of a `rows_asked` document.

    Raises:
        ConfigError: no such document.
    """
    document = read(name)
    try:
        return {int(rows): int(n) for rows, n in document["results"]["rows"].items()}
    except (KeyError, AttributeError) as error:
        raise ConfigError.for_field("--decode", name, "a document with rows") from error


def choose(
    counts: Mapping[int, int], cost: Callable[[int], float], *, label: str, top: int | None = None
) -> dict[str, Any]:
    """Buckets for steps of these rows, and the waste of the default ones beside them.

    Args:
        counts: rows -> steps.
        cost: of a step of so many rows, in seconds; a cost that falls with the rows (noise of a
            measurement) counts as that of the most expensive smaller step.
        label: what the costs are.
        top: rows of the largest step; None: of `counts`.
    """
    largest = max(counts) if top is None else top
    costs: list[float] = []
    for rows in range(1, largest + 1):
        costs.append(max(cost(rows), costs[-1] if costs else 0.0))

    def at(rows: int) -> float:
        return costs[rows - 1]

    chosen = choose_buckets(counts, at, MOST_BUCKETS, largest)
    default = default_node_buckets(largest)
    found = {}
    for name, buckets in (("chosen", chosen), ("default", default), ("one", (largest,))):
        waste = bucket_waste(buckets, counts, at)
        found[name] = {
            "node_buckets": list(buckets),
            "padded_rows": waste.padded_rows,
            "extra_time": waste.extra_time,
        }
    steps = sum(counts.values())
    mean = sum(rows * n for rows, n in counts.items()) / steps
    return {"costs": label, "steps": steps, "mean_rows": mean, **found}


def choose_kv(model: StepModel, max_seq_len: int, rows: int = _KV_ROWS) -> dict[str, Any]:
    """Waste of the default kv buckets, and of as many chosen ones, over a context that fills up.

    Every length up to `max_seq_len` comes as often as any other.
    """
    lengths = range(_KV_UNIT, max_seq_len + 1, _KV_UNIT)
    units = {length // _KV_UNIT: 1 for length in lengths}
    total = sum(model.time(rows, length).total for length in lengths)
    default = default_kv_buckets(max_seq_len)
    ends = choose_buckets(
        units, lambda n: model.idle(rows, 0, n * _KV_UNIT), len(default), len(units)
    )

    def extra(buckets: Sequence[int]) -> float:
        return sum(model.idle(rows, n, bucket_of(buckets, n)) for n in lengths) / total

    sets = {"default": default, "chosen": tuple(n * _KV_UNIT for n in ends), "one": (max_seq_len,)}
    found = {
        name: {"kv_buckets": list(buckets), "extra_time": extra(buckets)}
        for name, buckets in sets.items()
    }
    return {"max_seq_len": max_seq_len, "rows": rows, **found}


def histogram(rows: list[int]) -> dict[str, int]:
    """Rows -> steps, as a document holds it."""
    return {str(n): count for n, count in sorted(Counter(rows).items())}


def interpolated(measured: Mapping[int, float]) -> Callable[[int], float]:
    """A cost between measured sizes: linear, and that of the nearest one outside."""
    sizes = sorted(measured)

    def cost(rows: int) -> float:
        if rows <= sizes[0]:
            return measured[sizes[0]]
        for low, high in itertools.pairwise(sizes):
            if rows <= high:
                part = (rows - low) / (high - low)
                return math.fsum(((1 - part) * measured[low], part * measured[high]))
        return measured[sizes[-1]]

    return cost
