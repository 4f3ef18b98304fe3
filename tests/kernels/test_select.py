"""Selection: ties, non-finite rows, temperatures near zero, filters, the law of the samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ptd_engine.kernels import Ops, SelectMode, select_ops

OPS: Ops = select_ops("torch")
NAN, INF = float("nan"), float("inf")


def select(
    rows: Any,
    temperature: float | list[float] = 0.0,
    uniform: float | list[float] = 0.5,
    *,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    n_verify: int | None = None,
    mode: SelectMode = "filter",
    ids: int = 0,
) -> list[list[int]]:
    logits = torch.as_tensor(rows, dtype=torch.float32)
    n = logits.shape[0]
    out = torch.full((n, 1 + ids), -7, dtype=torch.int32)
    OPS.select(
        logits,
        torch.tensor(temperature, dtype=torch.float32).expand(n).contiguous(),
        torch.tensor(uniform, dtype=torch.float32).expand(n).contiguous(),
        torch.tensor([top_k, top_p, min_p, 0.0]),
        n_verify=n if n_verify is None else n_verify,
        mode=mode,
        out=out,
    )
    result: list[list[int]] = out.tolist()
    return result


def first(rows: Any, *args: Any, **options: Any) -> list[int]:
    return [row[0] for row in select(rows, *args, **options)]


@pytest.mark.parametrize("mode", ["greedy", "sample", "filter"])
def test_ties_go_to_the_lowest_id(mode: SelectMode) -> None:
    wide = torch.zeros(3, 50000)
    wide[0, [1023, 1024]] = 3.0
    wide[1, [0, 49999]] = 3.0
    wide[2, [17, 32768, 32769]] = 3.0
    assert first(wide, mode=mode) == [1023, 0, 17]
    assert first([[1, 3, 3, 0]], mode=mode) == [1]
    assert first(wide.to(torch.bfloat16).float(), mode=mode) == [1023, 0, 17]


def test_temperature_zero_and_top_k_one_are_the_same_argmax() -> None:
    for uniform in torch.linspace(0, 0.999, 50).tolist():
        assert first([[3, 3, 0]], 1.0, uniform, top_k=1) == [0]
        assert first([[3, 3, 0]], 0.0, uniform) == [0]


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-9, 1e-6, 3e-4])
@pytest.mark.parametrize("mode", ["sample", "filter"])
def test_tiny_temperature_is_the_argmax(temperature: float, mode: SelectMode) -> None:
    for uniform in (0.0, 0.5, 1 - 2**-24):
        assert first([[10, 9, -100], [-3e38, 3e38, 0]], temperature, uniform, mode=mode) == [0, 1]
    law = OPS.probabilities(
        torch.tensor([[10.0, 9, -100]]), torch.tensor([temperature]), torch.tensor([0.0, 1, 0, 0])
    )
    assert torch.isfinite(law).all()


@pytest.mark.parametrize("top_p", [1e-9, 1e-4])
def test_tiny_top_p_keeps_the_argmax(top_p: float) -> None:
    for uniform in (0.0, 0.5, 0.999):
        assert first([[1, 2, 2, 0]], 1.0, uniform, top_p=top_p) == [1]


@pytest.mark.parametrize("mode", ["greedy", "sample", "filter"])
@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("place", [0, 25000, 49999])
def test_one_bad_logit_fails_its_row_only(mode: SelectMode, bad: float, place: int) -> None:
    logits = torch.zeros(3, 50000)
    logits[:, 7] = 9.0
    logits[1, place] = bad
    for temperature in (0.0, 1e-3):
        assert first(logits, temperature, mode=mode) == [7, -1, 7]


@pytest.mark.parametrize("mode", ["greedy", "sample", "filter"])
def test_masked_ids(mode: SelectMode) -> None:
    rows = [[-INF, -INF, -INF], [-INF, 2.0, -INF], [NAN, -INF, -INF]]
    assert first(rows, [0.0, 0.0, 0.0], mode=mode) == [-1, 1, -1]
    assert first(rows, 1.0, 0.999, mode=mode) == [-1, 1, -1]


def test_only_verified_rows_with_a_temperature_sample() -> None:
    rows = [[0.0, 0.1]] * 4
    assert first(rows, [1, 0, 1, 1], 0.0, n_verify=3) == [0, 1, 0, 1]
    assert first(rows, [1, 0, 1, 1], 0.0, mode="greedy") == [1, 1, 1, 1]
    assert first(rows, [1, 0, 1, 1], 0.0, n_verify=0, mode="sample") == [1, 1, 1, 1]


def test_largest_ids_follow_the_token() -> None:
    rows = [[5.0, 1, 9, 7], [1.0, 2, 3, 4]]
    assert select(rows, ids=3) == [[2, 2, 3, 0], [3, 3, 2, 1]]
    assert select(rows, 1.0, 0.0, ids=1) == [[0, 2], [0, 3]]


def processed(row: list[float], temperature: float, k: int, p: float, m: float) -> list[float]:
    """The distribution by lists and loops, in exact order of the definition."""
    peak = max(row)
    mass = [torch.tensor((x - peak) / temperature, dtype=torch.float64).exp().item() for x in row]
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    kept = order[:k] if k else order
    total, running, nucleus = sum(mass[i] for i in kept), 0.0, []
    for i in kept:
        if nucleus and p < 1 and running >= p * total:
            break
        nucleus.append(i)
        running += mass[i]
    nucleus = [i for i in nucleus if mass[i] >= m * mass[order[0]]]
    norm = sum(mass[i] for i in nucleus)
    return [mass[i] / norm if i in nucleus else 0.0 for i in range(len(row))]


def f32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))


@settings(max_examples=150, deadline=None)
@given(
    row=st.lists(st.integers(-6, 6).map(lambda x: x / 2), min_size=1, max_size=12),
    temperature=st.sampled_from([0.25, 1.0, 2.0]),
    top_k=st.integers(0, 13),
    top_p=st.sampled_from([0.1, 0.33, 0.77, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.07, 0.31]),
)
def test_probabilities_follow_the_definition(
    row: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    law = OPS.probabilities(
        torch.tensor([row]),
        torch.tensor([temperature]),
        torch.tensor([top_k, top_p, min_p, 0.0], dtype=torch.float32),
    )
    assert law.dtype == torch.float64
    expected = processed(row, temperature, top_k, f32(top_p), f32(min_p))
    torch.testing.assert_close(law[0], torch.tensor(expected, dtype=torch.float64))


def test_top_k_keeps_exactly_k_of_tied_ids() -> None:
    law = OPS.probabilities(
        torch.tensor([[1.0, 2, 2, 2, 2, 0]]), torch.ones(1), torch.tensor([3.0, 1, 0, 0])
    )
    assert (law[0] > 0).tolist() == [False, True, True, True, False, False]


def test_top_k_ties_in_a_row_too_long_for_a_short_sort() -> None:
    law = OPS.probabilities(
        torch.zeros(1, 50000), torch.ones(1), torch.tensor([5.0, 1.0, 0.0, 0.0])
    )
    assert law[0].nonzero().flatten().tolist() == [0, 1, 2, 3, 4]


def test_top_p_stops_where_the_mass_is_reached_exactly() -> None:
    law = OPS.probabilities(torch.zeros(1, 4), torch.ones(1), torch.tensor([0.0, 0.5, 0.0, 0.0]))
    assert law[0].tolist() == [0.5, 0.5, 0.0, 0.0]


def shares(logits: Tensor, count: int, **options: Any) -> Tensor:
    """Share of each id over an even grid of uniforms: the law itself, without sampling noise."""
    grid = ((torch.arange(count) + 0.5) / count).tolist()
    drawn = first(logits.expand(count, -1), 0.7, grid, **options)
    return torch.bincount(torch.tensor(drawn), minlength=logits.shape[-1]) / count


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.1}])
def test_samples_have_the_processed_law(options: dict[str, Any]) -> None:
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0, 1.9, -3.0, 0.9, 1.0])
    sampling = [options.get("top_k", 0), options.get("top_p", 1.0), options.get("min_p", 0.0), 0.0]
    law = OPS.probabilities(logits[None], torch.tensor([0.7]), torch.tensor(sampling))[0]
    assert (shares(logits, 4096, **options) - law).abs().max() <= 1.01 / 4096
    assert ((shares(logits, 4096, **options) > 0) == (law > 1 / 4096)).all()


def test_rare_ids_beyond_any_short_list_keep_their_probability() -> None:
    logits = torch.zeros(1000)
    logits[:64] = 0.5
    share = shares(logits, 20000, mode="sample")
    law = torch.softmax(logits.double() / f32(0.7), -1)
    assert law[999] < 1.1e-3
    assert (share - law).abs().max() <= 1.01 / 20000


def test_uniform_borders() -> None:
    rows = [[0.0, 0.0, 0.0, 0.0]]
    assert first(rows, 1.0, 0.0, mode="sample") == [0]
    assert first(rows, 1.0, 0.25, mode="sample") == [1]
    assert first(rows, 1.0, 1 - 2**-24, mode="sample") == [3]
    assert first([[-INF, 0.0, 0.0, -INF]], 1.0, 1 - 2**-24, mode="sample") == [2]
    assert first([[-INF, 0.0, 0.0, -INF]], 1.0, 0.0, mode="sample") == [1]


def test_a_row_does_not_depend_on_the_others() -> None:
    logits = torch.randn(40, 3001, generator=torch.Generator().manual_seed(0))
    uniform = torch.rand(40, generator=torch.Generator().manual_seed(1)).tolist()
    together = first(logits, 0.9, uniform, top_k=50, top_p=0.9)
    alone = [first(logits[i : i + 1], 0.9, uniform[i], top_k=50, top_p=0.9)[0] for i in range(40)]
    assert together == alone
    assert len(set(together)) > 20
