"""How well counts agree with a law: Pearson's chi-square."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

Outcome = TypeVar("Outcome")


def p_value(counts: Counter[Outcome], law: Mapping[Outcome, float]) -> float:
    """Rare outcomes are pooled; Wilson and Hilferty's normal approximation."""
    assert all(law.get(outcome, 0.0) > 0.0 for outcome in counts)
    total = counts.total()
    cells: list[tuple[float, float]] = []
    rare_seen = rare_expected = 0.0
    for outcome, probability in law.items():
        if probability * total < 10:
            rare_seen += counts[outcome]
            rare_expected += probability * total
        else:
            cells.append((counts[outcome], probability * total))
    if rare_expected >= 10:
        cells.append((rare_seen, rare_expected))
    freedom = len(cells) - 1
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    if freedom == 0:
        return 1.0
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2))
