"""The listed successors end where their probability reaches sampling[3], in every backend."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ptd_engine.kernels import Ops, select_ops


@pytest.fixture(params=["torch", "cpu"])
def ops(request: pytest.FixtureRequest) -> Ops:
    return select_ops(request.param, num_threads=1)


def successors(ops: Ops, logits: Tensor, k: int, top_p: float, **options: Any) -> list[list[int]]:
    """Greedy rows' listed ids; temperatures and the request's own filters must not matter."""
    rows = logits.shape[0]
    out = torch.full((rows, 1 + k), -7, dtype=torch.int32)
    ops.select(
        logits,
        torch.zeros(rows),
        torch.zeros(rows),
        torch.tensor([1.0, 0.1, 0.5, top_p]),
        n_verify=0,
        mode="greedy",
        out=out,
        **options,
    )
    assert out[:, 0].tolist() == logits.argmax(-1).tolist()
    return [row[1:] for row in out.tolist()]


def literal(row: list[float], k: int, top_p: float) -> list[int]:
    """The definition by lists and loops, in fp64."""
    law = torch.softmax(torch.tensor(row, dtype=torch.float64), -1).tolist()
    order = sorted(range(len(row)), key=lambda i: -row[i])[:k]
    listed, reached = [], 0.0
    for index in order:
        listed.append(-1 if listed and reached >= top_p else index)
        reached += law[index]
    return listed


@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.62, 0.9, 0.999])
def test_the_smallest_set_that_reaches_top_p_is_listed(ops: Ops, top_p: float) -> None:
    generator = torch.Generator().manual_seed(int(1000 * top_p))
    cuts = set()
    for spread in (0.5, 2.0, 6.0, 30.0):
        logits = spread * torch.randn(8, 2003, generator=generator)
        logits[:, 100:] -= 8  # so that few ids hold much
        got = successors(ops, logits, 8, top_p)
        assert got == [literal(row, 8, top_p) for row in logits.tolist()]
        cuts |= {sum(token >= 0 for token in row) for row in got}
    assert min(cuts) == 1
    assert len(cuts) > 1 or top_p == 0.01


@pytest.mark.parametrize("top_p", [0.0, 1.0])
def test_off_lists_them_all(ops: Ops, top_p: float) -> None:
    logits = torch.tensor([[9.0, 0.0, 3.0, -200.0, 1.0]])
    assert successors(ops, logits, 4, top_p) == [[0, 2, 4, 1]]


def test_one_sure_token_stands_alone(ops: Ops) -> None:
    logits = torch.tensor([[0.0, 200.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.1]])
    assert successors(ops, logits, 2, 0.25) == [[1, -1], [3, -1]]


def test_mass_of_padding_does_not_count(ops: Ops) -> None:
    logits = torch.tensor([[1.0, 0.9, 0.0, 5.0], [1.0, 0.9, 0.0, float("nan")]])
    out = torch.full((2, 3), -7, dtype=torch.int32)
    ops.select(
        logits,
        torch.zeros(2),
        torch.zeros(2),
        torch.tensor([0.0, 1.0, 0.0, 0.5]),
        n_verify=0,
        mode="greedy",
        out=out,
        vocab_limit=3,
    )
    assert out.tolist() == [[0, 0, 1], [0, 0, 1]]
