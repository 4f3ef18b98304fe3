"""Methods against plain decoding: the speed of each set, and the two sweeps of PTD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.decode import summarise
from bench.paired import PLAIN
from bench.paper.sections import Cell, Section, numbers
from bench.paper.store import Unit

ALL = "all"
DIFFERS = "differs"
_COUNTERS = (
    *("decoding_efficiency", "hit_rate", "accept_length"),
    *("mean_draft_nodes", "mean_candidate_nodes", "step_cost_ratio"),
)
_COLUMNS = (
    *(("tokens/s", ".1f"), ("speed-up", ".2f"), ("DE", ".2f"), ("HR", ".2f"), ("AL", ".2f")),
    *(("Dft", ".1f"), ("Ver", ".1f"), ("step cost", ".2f"), ("identical", "")),
)
_NOTE = (
    "Plain decoding and all methods took turns prompt by prompt, on the same weights and kernels; "
    "times include prefill. A method with an output that differs from plain decoding's gets no "
    "figure. Speed-up, Dft, Ver: see the README; step cost is the time of a step over that of a "
    "plain one."
)


def labels_of(units: Sequence[Unit]) -> list[str]:
    """Plain decoding and every drafter that was run, in order."""
    return list(dict.fromkeys(label for unit in units for label in unit.prompt.runs))


def compared(units: Sequence[Unit], label: str) -> dict[str, Any] | None:
    """Speed and counters of a drafter on these units; None if an output differs."""
    if any(unit.differs(label) for unit in units):
        return None
    return summarise([unit.prompt for unit in units], label)


def _row(units: Sequence[Unit], label: str) -> list[Cell]:
    """The cells of `_COLUMNS`."""
    same = sum(not unit.differs(label) for unit in units)
    identical = f"{same}/{len(units)}"
    found = compared(units, label)
    if found is None:
        return [DIFFERS, *[None] * (len(_COLUMNS) - 2), identical]
    if label == PLAIN:
        return [found["tokens_per_second"], 1.0, 1.0, *[None] * 4, 1.0, identical]
    speed = [found["tokens_per_second"], found["speedup"]]
    return [*speed, *(found[name] for name in _COUNTERS), identical]


def methods_section(units: Sequence[Unit], temperature: float) -> Section:
    """Methods by sets, and over all of them."""
    sets = list(dict.fromkeys(unit.prompt.prompt_set for unit in units))
    rows: list[list[Cell]] = []
    for name in [*sets, ALL]:
        own = [unit for unit in units if name in (unit.prompt.prompt_set, ALL)]
        rows += [[name, label, *_row(own, label)] for label in labels_of(units)]
    how = "greedy" if temperature == 0 else f"sampling at temperature {temperature:g}"
    return Section(
        "greedy" if temperature == 0 else "sampled",
        f"Tables 1, 2, 4 and 5: methods by sets, {how}",
        _NOTE,
        [("set", ""), ("method", ""), *_COLUMNS],
        rows,
    )


def sweep_section(units: Sequence[Unit], name: str, title: str, parameter: str) -> Section:
    """PTD with one of its parameters varied.

    Args:
        parameter: the field of its settings that the labels name.
    """
    rows: list[list[Cell]] = []
    for label in labels_of(units):
        if label != PLAIN:
            options = dict(o.split("=") for o in label.partition(":")[2].split(","))
            rows.append([int(options[parameter]), *_row(units, label)])
    return Section(name, title, _NOTE, [(parameter, "d"), *_COLUMNS], rows)


def overhead_section(units: Sequence[Unit]) -> Section:
    """Tokens a step over the rows that they take: PTD against Lookahead."""
    rows: list[list[Cell]] = []
    for label in labels_of(units):
        found = None if label == PLAIN else compared(units, label)
        if found is not None:
            overhead = found["mean_draft_nodes"] + found["mean_candidate_nodes"]
            shown = [found[k] for k in ("decoding_efficiency", "step_cost_ratio", "speedup")]
            rows.append([label.partition(":")[0], label, overhead, *shown])
    return Section(
        "overhead",
        "Figure 7: PTD and Lookahead at equal overhead",
        "Overhead is the rows of a step besides the root: draft and candidate rows. Of two methods "
        "the one with the higher DE at the same overhead makes the better use of a step.",
        [
            *(("method", ""), ("drafter", ""), ("overhead", ".1f")),
            *numbers(("DE", "step cost", "speed-up"), ".2f"),
        ],
        rows,
    )
