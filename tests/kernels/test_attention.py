"""Attention ops against fp64, over the head groupings and head sizes in use."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from ptd_engine.kernels import Ops, StepScratch, select_ops
from ptd_engine.testing.compare import max_abs_diff, tree_mask

PREFIX = 37


@pytest.fixture(scope="module")
def ops() -> Ops:
    return select_ops("torch")


def random_parents(n: int, seed: int) -> list[int]:
    generator = random.Random(seed)
    return [-1, *(generator.randrange(0, i) for i in range(1, n))]


def visible_rows(parents: list[int]) -> Tensor:
    """[N, PREFIX + N] bool, by walking up the tree."""
    n = len(parents)
    visible = torch.zeros(n, PREFIX + n, dtype=torch.bool)
    visible[:, :PREFIX] = True
    for row in range(n):
        node = row
        while node >= 0:
            visible[row, PREFIX + node] = True
            node = parents[node]
    return visible


def reference(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float) -> Tensor:
    """Softmax attention in fp64, one query head at a time."""
    n, heads, dim = q.shape
    group, live = heads // k.shape[0], visible.shape[1]
    out = torch.empty(n, heads, dim, dtype=torch.float64)
    for head in range(heads):
        keys, values = k[head // group, :live].double(), v[head // group, :live].double()
        scores = (q[:, head].double() @ keys.T * scale).masked_fill(~visible, float("-inf"))
        out[:, head] = scores.softmax(-1) @ values
    return out.view(n, heads * dim)


def make_case(heads: int, kv_heads: int, n: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(heads * 100 + n + dim)
    q = torch.randn(n, heads, dim, generator=generator)
    k, v = torch.randn(2, kv_heads, PREFIX + n + 30, dim, generator=generator).unbind(0)
    return q, k.clone(), v.clone()


@pytest.mark.parametrize(("heads", "kv_heads"), [(28, 4), (12, 2), (14, 2), (32, 8), (40, 40)])
@pytest.mark.parametrize("n", [1, 5, 24, 33, 70])
@pytest.mark.parametrize("dim", [64, 80, 96, 128])
def test_tree_attention(heads: int, kv_heads: int, n: int, dim: int, ops: Ops) -> None:
    q, k, v = make_case(heads, kv_heads, n, dim)
    parents = random_parents(n, seed=n)
    mask, prefix = tree_mask(parents), torch.tensor([PREFIX], dtype=torch.int32)
    expected = reference(q, k, v, visible_rows(parents), dim**-0.5)
    # What lies beyond the step's rows is dead: any value there must leave no trace.
    k[:, PREFIX + n :], v[:, PREFIX + n :] = float("nan"), float("inf")
    for bound, shared in (
        (PREFIX + n, StepScratch(exact_bound=True)),
        (PREFIX + n, None),
        (PREFIX + n + 30, StepScratch()),
    ):
        out = torch.full((n, heads * dim), float("nan"))
        ops.tree_attention(q, k, v, mask, prefix, bound, dim**-0.5, out, shared)
        assert max_abs_diff(out, expected) <= 1e-5


@pytest.mark.parametrize("n", [1, 15, 16, 50])
def test_causal_attention(n: int, ops: Ops) -> None:
    q, k, v = make_case(6, 2, n, 64)
    prefix = torch.tensor([PREFIX], dtype=torch.int32)
    chain = [i - 1 for i in range(n)]
    expected = reference(q, k, v, visible_rows(chain), 0.125)
    k[:, PREFIX + n :], v[:, PREFIX + n :] = float("nan"), 3e38
    for bound, exact in ((PREFIX + n, True), (PREFIX + n, False), (PREFIX + n + 30, False)):
        out = torch.full((n, 6 * 64), float("nan"))
        ops.causal_attention(q, k, v, prefix, bound, 0.125, out, StepScratch(exact))
        assert max_abs_diff(out, expected) <= 1e-5


def test_first_step_without_prefix(ops: Ops) -> None:
    q, k, v = make_case(4, 2, 3, 64)
    out = torch.empty(3, 256)
    prefix = torch.zeros(1, dtype=torch.int32)
    ops.tree_attention(q, k, v, tree_mask([-1, 0, 0]), prefix, 3, 0.125, out)
    assert max_abs_diff(out[0].view(2, 2, 64), v[:, 0][:, None].expand(2, 2, 64)) <= 1e-6


def test_rows_beyond_the_first_mask_word(ops: Ops) -> None:
    """The 64th bit is the sign bit of an int64 word."""
    n = 130
    parents = [-1] * n
    parents[100], parents[64] = 63, 63
    q, k, v = make_case(4, 2, n, 64)
    out = torch.empty(n, 256)
    prefix = torch.tensor([PREFIX], dtype=torch.int32)
    ops.tree_attention(q, k, v, tree_mask(parents), prefix, PREFIX + n, 0.125, out)
    assert max_abs_diff(out, reference(q, k, v, visible_rows(parents), 0.125)) <= 1e-5
