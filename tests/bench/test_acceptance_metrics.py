"""Acceptance by depth, step cost and the paper's identity, on counters."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptd_engine.metrics import GenerationStats


def stats(histogram: list[int], misses: int = 0, **more: float) -> GenerationStats:
    """`misses` steps had no candidates; of the others, histogram[k] accepted k."""
    hits = sum(histogram)
    accepted = sum(k * n for k, n in enumerate(histogram))
    counters = {
        "steps": hits + misses,
        "tokens": hits + misses + accepted,
        "hit_steps": hits,
        "hit_tokens": hits + accepted,
        "candidate_nodes": 7 * hits,
        "draft_nodes": 3 * (hits + misses),
        "accepted": accepted,
        "accepted_histogram": [misses + histogram[0], *histogram[1:]],
    }
    return GenerationStats.from_counters(counters, **more)


def test_shares_of_steps_that_got_at_least_so_far() -> None:
    found = stats([5, 2, 1, 0], misses=2)
    assert found.acceptance_by_depth == (0.3, 0.1)
    assert found.conditional_acceptance == (0.3, pytest.approx(1 / 3))
    nothing = stats([3])
    assert nothing.acceptance_by_depth == nothing.conditional_acceptance == ()
    json.dumps(found.as_dict(), allow_nan=False)


counts = st.lists(st.integers(0, 50), min_size=1, max_size=9)


@given(counts, st.integers(0, 50))
def test_the_identities_of_the_paper_hold(histogram: list[int], misses: int) -> None:
    found = stats(histogram, misses)
    if found.steps == 0:
        return
    mixed = found.hit_rate * found.accept_length + 1 - found.hit_rate
    assert found.decoding_efficiency == pytest.approx(mixed)
    assert 1 + sum(found.acceptance_by_depth) == pytest.approx(found.mean_acceptance_length)
    product = 1.0
    for share, conditional in zip(
        found.acceptance_by_depth, found.conditional_acceptance, strict=True
    ):
        product *= conditional
        assert share == pytest.approx(product)


def test_a_step_costs_what_plain_steps_do_not() -> None:
    plain = stats([0], misses=8, total_time_s=5.0, forward_time_s=4.0)
    drafted = stats(
        [2, 2], total_time_s=4.0, plan_time_s=0.5, forward_time_s=2.0, commit_time_s=0.5
    )
    assert drafted.step_cost(plain) == pytest.approx(0.75 / 0.5)
    assert drafted.speedup(plain) == 1.25
    assert plain.step_cost(plain) == plain.speedup(plain) == 1
    assert drafted.step_cost(stats([0])) == 0  # nothing to compare with
