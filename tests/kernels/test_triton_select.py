"""Selection by Triton kernels, interpreted, against the operations in plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is an optional package: pip install triton")

from ptd_engine.kernels import SelectMode, torch_select
from ptd_engine.triton_kernels.select import CHUNK, argmax_and_successors
from ptd_engine.triton_kernels.select_draw import draw

pytestmark = pytest.mark.usefixtures("on_kernel_device")
NAN, INF = float("nan"), float("inf")
OFF = (0.0, 1.0, 0.0, 0.0)


def make(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    values = torch.randn(shape, generator=generator, device="cpu")
    return values.to(torch.get_default_device())


def select(
    logits: Tensor,
    temperature: list[float],
    uniform: list[float],
    sampling: tuple[float, ...] = OFF,
    mode: SelectMode = "filter",
    successors: int = 0,
) -> tuple[Tensor, Tensor]:
    """What the kernels choose, and what torch does."""
    n = logits.shape[0]
    heat, where, rules = torch.tensor(temperature), torch.tensor(uniform), torch.tensor(sampling)
    out = torch.full((n, 1 + successors), -7, dtype=torch.int32)
    expected = out.clone()
    argmax_and_successors(logits, rules, out)
    if mode != "greedy":
        draw(logits, heat, where, rules, out, filters=mode == "filter")
    torch_select.select(logits, heat, where, rules, n_verify=n, mode=mode, out=expected)
    return out, expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [5, 97, CHUNK, CHUNK + 1, 2 * CHUNK + 77])
def test_argmax_and_successors(dtype: torch.dtype, width: int) -> None:
    wide = make(3, width + 9).to(dtype)
    wide[:, width:] = NAN  # behind the limit of the vocabulary
    out, expected = select(wide[:, :width], [0.0] * 3, [0.0] * 3, mode="greedy", successors=4)
    assert torch.equal(out[:, 0], expected[:, 0])
    rows = torch.arange(3)[:, None]  # the order of equal logits is free
    assert torch.equal(wide[rows, out[:, 1:].long()], wide[rows, expected[:, 1:].long()])
    assert all(len(set(row)) == 4 for row in out[:, 1:].tolist())


def test_ties_go_to_the_lowest_id_and_bad_rows_fail_alone() -> None:
    logits = torch.zeros(7, 2 * CHUNK + 5)
    logits[0, [1023, CHUNK]] = 3.0
    logits[1, [CHUNK + 1, 2 * CHUNK + 4]] = 3.0
    logits[2, CHUNK + 9] = NAN
    logits[3, 2 * CHUNK + 4] = INF
    logits[4] = -INF
    logits[5, :] = -INF
    logits[5, 2 * CHUNK] = -3e38
    for mode in ("greedy", "sample", "filter"):
        for temperature in (0.0, 1e-4):
            out, expected = select(logits, [temperature] * 7, [0.0] * 7, mode=mode)
            assert out[:, 0].tolist() == [1023, CHUNK + 1, -1, -1, -1, 2 * CHUNK, 0]
            assert torch.equal(out, expected)


def test_successors_behind_the_nucleus_are_left_out() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.9, -2.0], [9.0, 0, 0, 0, 0]])
    for top_p in (0.0, 0.3, 0.7, 0.97, 1.0):
        out, expected = select(logits, [0.0] * 2, [0.0] * 2, (0, 1, 0, top_p), successors=3)
        torch_listed = expected[:, 1:]
        assert torch.equal(out[:, 1:] < 0, torch_listed < 0)
        assert torch.equal(out[0], expected[0])


FILTERS = [
    OFF,
    (3.0, 1.0, 0.0, 0.0),
    (0.0, 0.8, 0.0, 0.0),
    (0.0, 1.0, 0.1, 0.0),
    (17.0, 0.5, 0.03, 0.0),
    (1.0, 1.0, 0.0, 0.0),
    (0.0, 1e-9, 0.0, 0.0),
    (1000.0, 0.999, 0.0, 0.0),
]


@pytest.mark.parametrize("sampling", FILTERS, ids=str)
def test_samples_are_those_of_torch(sampling: tuple[float, ...]) -> None:
    n = 6
    logits = make(1, 301, seed=4).expand(n, -1).clone() * 2
    logits[:, 5] = -0.0
    logits[n // 2 :] = (logits[n // 2 :] * 2).round() / 2  # many equal ones
    uniform = torch.cat([(torch.arange(n // 2) + 0.5) / (n // 2)] * 2).tolist()
    out, expected = select(logits, [0.7] * n, uniform, sampling)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("sampling", [OFF, (500.0, 0.9, 0.0, 0.0)], ids=str)
def test_samples_over_several_blocks(sampling: tuple[float, ...]) -> None:
    logits = make(4, CHUNK + 300, seed=5)
    out, expected = select(logits, [1.0] * 4, [0.1, 0.5, 0.97, 1 - 2**-24], sampling)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("temperature", [1e-45, 1e-9, 3e-4])
def test_tiny_temperature_is_the_argmax(temperature: float) -> None:
    logits = torch.tensor([[10.0, 9, -100], [-3e38, 3e38, 0]])
    for mode in ("sample", "filter"):
        for uniform in (0.0, 0.5, 1 - 2**-24):
            out, _ = select(logits, [temperature] * 2, [uniform] * 2, mode=mode)
            assert out[:, 0].tolist() == [0, 1]


def test_ties_at_the_bounds_are_kept_by_id() -> None:
    tied = torch.tensor([[1.0, 2, 2, 2, 2, 0]])
    for sampling, kept in (
        ((4.0, 1.0, 0.0, 0.0), [1, 2, 3, 4]),
        ((0.0, 0.4, 0.0, 0.0), [1, 2]),
        ((2.0, 0.5, 0.0, 0.0), [1]),
    ):
        grid = [(i + 0.5) / 4 for i in range(4)]
        out, expected = select(tied.expand(4, -1).contiguous(), [1.0] * 4, grid, sampling)
        assert sorted(set(out[:, 0].tolist())) == kept
        assert torch.equal(out, expected)


def test_a_row_does_not_depend_on_the_others() -> None:
    logits, uniform = make(5, 333, seed=6), [0.1, 0.3, 0.5, 0.7, 0.9]
    rules = (50.0, 0.9, 0.0, 0.0)
    together, _ = select(logits, [0.9] * 5, uniform, rules, successors=2)
    for i in range(5):
        alone, _ = select(logits[i : i + 1], [0.9], uniform[i : i + 1], rules, successors=2)
        assert torch.equal(alone[0], together[i])
