"""Any drafter's own time on the toy model, for `bookkeeping --drafter`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bench.common import choose_drafters
from bench.report import TitledTable, make_table
from bench.toy import Loop, ToyModel
from ptd_engine.drafters import make_drafter

_TIMES = ("plan_us", "commit_us", "total_us", "total_p99_us")


def measure_drafters(
    labels: Sequence[str],
    model: ToyModel,
    most: int,
    warm_up: int,
    steps: int,
    between: Callable[[], object],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Time each drafter with warm and with cold caches.

    Args:
        most: tokens that an output may have.
        warm_up: tokens of the output before it is timed.
        between: clears the caches where the forward pass would.

    Returns:
        Times, and where an output was not plain decoding's (such a drafter is not timed).

    Raises:
        ConfigError: an unknown drafter.
    """
    timed, wrong = [], []
    for choice in choose_drafters(labels, "cpu"):
        loop = Loop(model, make_drafter(choice.spec, device_type="cpu"), most)
        loop.run_until(warm_up)
        warm = loop.measure(steps).result()
        cold = loop.measure(steps, between).result()
        position = loop.check()
        if position is None:
            timed.append({"drafter": choice.label, "warm_caches": warm, "cold_caches": cold})
        else:
            wrong.append({"drafter": choice.label, "position": position})
    return timed, wrong


def drafters_table(timed: Sequence[dict[str, Any]], steps: int) -> TitledTable:
    """For people."""
    names = [name.removesuffix("_us").removeprefix("total_") for name in _TIMES]
    rows = [
        (
            t["drafter"],
            f"{t['warm_caches']['mean_candidate_nodes']:.1f}",
            f"{t['warm_caches']['mean_draft_nodes']:.1f}",
            *(f"{t['warm_caches'][key]:.1f}" for key in _TIMES),
            *(f"{t['cold_caches'][key]:.1f}" for key in _TIMES),
        )
        for t in timed
    ]
    return make_table(
        f"bookkeeping: microseconds a step by drafter, median of {steps} steps",
        ("drafter", "Ver", "Dft", *names, *(f"cold {name}" for name in names)),
        rows,
    )
