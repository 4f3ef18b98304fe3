"""Attention of every GPU backend against torch, and its bits in a tree and one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from gpu.device import BF16, DEVICE, FP16, FP32, ON_GPU, get_ops, int32, make, sizes
from torch import Tensor

from ptd_engine.kernels import Ops, torch_ref
from ptd_engine.testing.compare import tree_mask, within_reference_noise


@dataclass(frozen=True)
class Tree:
    """q [N, Hq, D] behind `prefix` rows of k, v [Hkv, S, D]; what lies beyond is NaN.

    k and v are views of one wider block whose other rows are NaN: strides count.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    parents: Sequence[int]
    prefix: int

    @staticmethod
    def random(
        n: int, prefix: int, heads: tuple[int, int], dim: int, dtype: torch.dtype, width: int = 6
    ) -> Tree:
        draw = random.Random(n)
        parents = [-1, *(draw.randrange(max(0, i - width), i) for i in range(1, n))]
        block = torch.full((2, heads[1], 2, prefix + n + 40, dim), float("nan"), device=DEVICE)
        block[:, :, 1, : prefix + n] = make(2, heads[1], prefix + n, dim, seed=prefix)
        k, v = block.to(dtype)[:, :, 1].unbind(0)
        return Tree(make(n, heads[0], dim, dtype=dtype, seed=n), k, v, parents, prefix)

    def run(self, ops: Ops, slack: int = 7) -> Tensor:
        n, heads, dim = self.q.shape
        out = torch.full((n, heads * dim), float("nan"), dtype=self.q.dtype, device=DEVICE)
        mask, bound = tree_mask(self.parents).to(DEVICE), self.prefix + n + slack
        caches = self.k, self.v, mask, int32(self.prefix)
        ops.tree_attention(self.q, *caches, bound, dim**-0.5, out)
        return out

    def in_torch(self, dtype: torch.dtype) -> Tensor:
        n, heads, dim = self.q.shape
        out = torch.empty(n, heads * dim, dtype=dtype, device=DEVICE)
        q, k, v = (x.to(dtype) for x in (self.q, self.k, self.v))
        mask, prefix = tree_mask(self.parents).to(DEVICE), int32(self.prefix)
        torch_ref.tree_attention(q, k, v, mask, prefix, self.prefix + n, dim**-0.5, out)
        return out

    def path_of(self, node: int) -> list[int]:
        path = [node]
        while self.parents[path[-1]] >= 0:
            path.append(self.parents[path[-1]])
        return path[::-1]

    def alone(self, node: int) -> Tree:
        """The node as plain decoding sees it: one row, its ancestors committed."""
        path = self.path_of(node)
        k, v = (torch.full_like(x, float("nan")) for x in (self.k, self.v))
        live = [*range(self.prefix), *(self.prefix + x for x in path)]
        k[:, : len(live)], v[:, : len(live)] = self.k[:, live], self.v[:, live]
        return Tree(self.q[node : node + 1], k, v, [-1], len(live) - 1)


def ops_of(backend: str, tree: Tree) -> Ops:
    return get_ops(backend, tree.q.dtype, tree.q.shape[2])


@pytest.mark.parametrize("dtype", sizes([BF16, FP16, FP32], [BF16]), ids=str)
@pytest.mark.parametrize(
    ("heads", "dim"),
    sizes(
        [((32, 8), 128), ((28, 4), 128), ((14, 2), 64), ((6, 1), 80), ((4, 4), 96)],
        [((3, 1), 64)],
    ),
)
@pytest.mark.parametrize(("n", "prefix"), sizes([(1, 0), (7, 511), (70, 2100)], [(3, 35)]))
def test_values(
    backend: str, dtype: torch.dtype, heads: tuple[int, int], dim: int, n: int, prefix: int
) -> None:
    tree = Tree.random(n, prefix, heads, dim, dtype)
    out = tree.run(ops_of(backend, tree))
    assert within_reference_noise(out, tree.in_torch(dtype), tree.in_torch(torch.float64))


@pytest.mark.parametrize("dtype", sizes([BF16, FP16], [BF16]), ids=str)
def test_the_largest_head(backend: str, dtype: torch.dtype) -> None:
    tree = Tree.random(*sizes([20, 700], [1, 3]), (2, 1), 256, dtype)
    out = tree.run(ops_of(backend, tree))
    assert within_reference_noise(out, tree.in_torch(dtype), tree.in_torch(torch.float64))


@pytest.mark.parametrize("dtype", sizes([BF16, FP16, FP32], [BF16]), ids=str)
@pytest.mark.parametrize(
    ("heads", "dim", "n", "prefix"),
    sizes(
        [((32, 8), 128, 64, 4090), ((28, 4), 128, 130, 1020), ((12, 2), 64, 33, 250)],
        [((2, 1), 64, 4, 61)],
    ),
)
def test_a_path_has_the_bits_of_decoding_it_token_by_token(
    backend: str, dtype: torch.dtype, heads: tuple[int, int], dim: int, n: int, prefix: int
) -> None:
    """Paths cross the edges of tiles and splits; dead rows hold NaN on both sides."""
    tree = Tree.random(n, prefix, heads, dim, dtype)
    ops = ops_of(backend, tree)
    out = tree.run(ops)
    assert torch.equal(out, tree.run(ops, slack=0))
    for node in range(0, n, max(1, n // 16)):
        assert torch.equal(tree.alone(node).run(ops, slack=3)[0], out[node]), node


def test_rows_that_share_a_block_do_not_matter(backend: str) -> None:
    few, many, prefix = sizes([5, 128, 3000], [1, 3, 20])
    tree = Tree.random(many, prefix, (8, 2), 64, BF16)
    star = Tree(tree.q, tree.k, tree.v, [-1] * many, prefix)
    ops = ops_of(backend, tree)
    alone = Tree(tree.q[:few], tree.k, tree.v, [-1] * few, prefix)
    assert torch.equal(alone.run(ops, slack=0), star.run(ops)[:few])


def test_what_a_row_does_not_see_may_hold_anything(backend: str) -> None:
    n, prefix = sizes([24, 1000], [3, 18])
    tree = Tree.random(n, prefix, (4, 2), 64, BF16)
    ops = ops_of(backend, tree)
    expected = tree.run(ops)
    leaf = n - 1
    tree.k[:, prefix + leaf], tree.v[:, prefix + leaf] = float("nan"), float("inf")
    assert torch.equal(tree.run(ops)[:leaf], expected[:leaf])


@pytest.mark.parametrize("dtype", sizes([BF16, FP32], [BF16]), ids=str)
def test_a_chain_is_the_prompt_however_it_is_cut(backend: str, dtype: torch.dtype) -> None:
    n, prefix, cut = sizes([100, 900, 37], [3, 17, 1])
    tree = Tree.random(n, prefix, (4, 2), 64, dtype)
    tree = Tree(tree.q, tree.k, tree.v, list(range(-1, n - 1)), prefix)
    ops = ops_of(backend, tree)
    expected = tree.run(ops)
    for begin, end in ((0, n), (0, cut), (cut, n)):
        out = torch.empty(end - begin, 4 * 64, dtype=dtype, device=DEVICE)
        at = int32(prefix + begin), prefix + end, 0.125, out
        ops.causal_attention(tree.q[begin:end], tree.k, tree.v, *at)
        assert torch.equal(out, expected[begin:end])


def test_the_dense_form() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from ptd_engine.triton_kernels.tree_attention import tree_attention

    n, prefix = sizes([70, 2100], [3, 35])
    tree = Tree.random(n, prefix, (4, 1), 64, BF16)
    out, mask = torch.empty(n, 4 * 64, dtype=BF16, device=DEVICE), tree_mask(tree.parents)
    caches = tree.k, tree.v, mask.to(DEVICE), int32(prefix), prefix + n + 7
    tree_attention(tree.q, *caches, 0.125, out, split=256, exact=False)
    assert within_reference_noise(out, tree.in_torch(BF16), tree.in_torch(torch.float64))


@pytest.mark.skipif(not ON_GPU, reason="a CPU captures no graphs")
def test_a_captured_step_serves_other_lengths(backend: str) -> None:
    tree = Tree.random(20, 1000, (8, 2), 128, BF16)
    ops, mask, length = ops_of(backend, tree), tree_mask(tree.parents).to(DEVICE), int32(1000)
    out = torch.empty(20, 8 * 128, dtype=BF16, device=DEVICE)

    def step() -> None:
        ops.tree_attention(tree.q, tree.k, tree.v, mask, length, 1020, 128**-0.5, out)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for prefix in (1000, 3, 600):
        length.fill_(prefix)
        graph.replay()
        found = out.clone()
        eager = Tree(tree.q, tree.k, tree.v, tree.parents, prefix).run(ops, slack=0)
        assert torch.equal(found, eager), prefix


@pytest.mark.skipif(not ON_GPU, reason="would take 9 GB of this machine's memory")
def test_offsets_beyond_31_bits(backend: str) -> None:
    free = torch.cuda.mem_get_info()[0]
    if free < 12 * 2**30:
        pytest.skip(f"needs 12 GB of the GPU's memory, {free / 2**30:.0f} are free")
    near = Tree.random(3, 18, (2, 2), 64, BF16)
    apart = 2**31 + 64
    wide = torch.empty(2, apart + 64 * near.k.shape[1], dtype=BF16, device=DEVICE)
    k, v = (x.as_strided(near.k.shape, (apart, 64, 1)) for x in wide.unbind())
    k.copy_(near.k), v.copy_(near.v)
    far, ops = Tree(near.q, k, v, near.parents, 18), ops_of(backend, near)
    assert torch.equal(far.run(ops), near.run(ops))
