"""Triton tree attention against torch: values, and bits that do not depend on the tree.

Interpreted where there is no GPU. That costs tens of milliseconds a program, so most cases have
small tiles and splits, which also puts their edges within reach.
"""

from __future__ import annotations

import mmap
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is an optional package: pip install triton")

from ptd_engine.kernels import select_ops
from ptd_engine.testing.compare import max_abs_diff, tree_mask, within_reference_noise
from ptd_engine.triton_kernels.attention_configs import AttentionConfig, choose_split
from ptd_engine.triton_kernels.causal_attention import causal_attention
from ptd_engine.triton_kernels.tree_attention import tree_attention, workspace_numel

DEVICE = torch.device("cuda" if Path("/dev/nvidiactl").exists() else "cpu")
SMALL = AttentionConfig(tile=16, row_blocks=(16, 32), stages=1, tail_block=16)
SPLIT = 32
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
exactness = pytest.mark.parametrize("exact", [True, False], ids=["exact", "dense"])


@dataclass(frozen=True)
class Case:
    """A tree behind a prefix: q [N, Hq, D]; k, v [Hkv, S, D], of which prefix + N rows are live."""

    q: Tensor
    k: Tensor
    v: Tensor
    parents: list[int]
    prefix: int

    @staticmethod
    def random(
        parents: Sequence[int],
        prefix: int,
        heads: tuple[int, int] = (2, 1),
        dim: int = 16,
        dtype: torch.dtype = FP32,
        dead: int = 3,
    ) -> Case:
        generator = torch.Generator().manual_seed(len(parents) * 1000 + prefix * 10 + dim)
        n, live = len(parents), prefix + len(parents)
        q = torch.randn(n, heads[0], dim, generator=generator)
        kv = torch.randn(2, heads[1], live + dead, dim, generator=generator)
        kv[:, :, live:] = float("nan")
        k, v = kv.to(dtype).to(DEVICE).unbind(0)
        return Case(q.to(dtype).to(DEVICE), k, v, list(parents), prefix)

    def run(
        self, exact: bool = True, dead: int = 3, split: int = SPLIT, **options: object
    ) -> Tensor:
        n, heads, dim = self.q.shape
        bound = self.prefix + n + dead
        room = workspace_numel(n, heads, dim, bound, split)
        options.setdefault("config", SMALL)
        # What the last step left in the workspace is never read.
        options.setdefault("workspace", torch.full((room,), float("nan"), device=DEVICE))
        out = torch.full((n, heads * dim), float("nan"), dtype=self.q.dtype, device=DEVICE)
        mask = tree_mask(self.parents).to(DEVICE)
        prefix = torch.tensor([self.prefix], dtype=torch.int32, device=DEVICE)
        scale = dim**-0.5
        caches = self.k, self.v
        tree_attention(
            self.q, *caches, mask, prefix, bound, scale, out, split=split, exact=exact, **options
        )
        return out

    def in_torch(self, dtype: torch.dtype) -> Tensor:
        n, heads, dim = self.q.shape
        out = torch.empty(n, heads * dim, dtype=dtype)
        q, k, v = (x.cpu().to(dtype) for x in (self.q, self.k, self.v))
        prefix = torch.tensor([self.prefix], dtype=torch.int32)
        bound = self.prefix + n
        mask, attention = tree_mask(self.parents), select_ops("torch").tree_attention
        attention(q, k, v, mask, prefix, bound, dim**-0.5, out)
        return out

    def assert_near_torch(self, out: Tensor) -> None:
        same = self.in_torch(self.q.dtype)
        assert within_reference_noise(out.cpu().float(), same.float(), self.in_torch(torch.float64))

    def path_of(self, node: int) -> list[int]:
        path = [node]
        while self.parents[path[-1]] >= 0:
            path.append(self.parents[path[-1]])
        return path[::-1]

    def alone(self, node: int) -> Case:
        """The node as plain decoding sees it: one row behind its committed ancestors."""
        path = self.path_of(node)
        rows = [*range(self.prefix), *(self.prefix + x for x in path)]
        return Case(self.q[node : node + 1], self.k[:, rows], self.v[:, rows], [-1], len(rows) - 1)


def random_tree(n: int, width: int = 6) -> list[int]:
    """Parents, each among the `width` nodes before its child."""
    generator = random.Random(n)
    return [-1, *(generator.randrange(max(0, i - width), i) for i in range(1, n))]


@exactness
@pytest.mark.parametrize(
    ("heads", "dim", "dtype"),
    [
        ((4, 2), 64, BF16),
        ((7, 1), 80, BF16),
        ((3, 3), 96, FP16),
        ((6, 1), 128, FP16),
        ((5, 1), 64, FP32),
        ((2, 1), 256, BF16),
        ((7, 1), 128, BF16),
    ],
)
def test_values(heads: tuple[int, int], dim: int, dtype: torch.dtype, exact: bool) -> None:
    """With the blocks of the table, over head sizes, groups and dtypes."""
    case = Case.random(random_tree(5), 150, heads, dim, dtype)
    case.assert_near_torch(case.run(exact, split=64, config=None))


@exactness
@pytest.mark.parametrize("prefix", [0, 1, 15, 16, 17, 31, 32, 33, 64])
@pytest.mark.parametrize("n", [1, 3])
def test_lengths_at_the_edges_of_tiles_and_splits(prefix: int, n: int, exact: bool) -> None:
    case = Case.random(random_tree(n), prefix)
    case.assert_near_torch(case.run(exact))
    case.assert_near_torch(case.run(exact, dead=0))


@pytest.mark.parametrize(("n", "exact"), [(70, True), (70, False), (200, False)])
def test_trees_of_several_mask_words(n: int, exact: bool) -> None:
    """The exact form costs a program a row: of four words, test_triton_ancestors.py has more."""
    case = Case.random(random_tree(n, width=60), 20, heads=(1, 1))
    blocks = replace(SMALL, tile=64)
    case.assert_near_torch(case.run(exact, split=64, config=blocks))


@pytest.mark.parametrize(
    ("prefix", "dtype"), [(0, BF16), (14, BF16), (29, BF16), (48, BF16), (29, FP32), (14, FP16)]
)
def test_a_path_has_the_bits_of_decoding_it_token_by_token(prefix: int, dtype: torch.dtype) -> None:
    parents = [-1, 0, 0, 1, 2, 3, 3, 5, 7]  # depth 5: across the edges behind 14 and 29
    case = Case.random(parents, prefix, heads=(4, 1), dtype=dtype)
    out = case.run()
    assert torch.equal(out, case.run(dead=0))
    for node in range(len(parents)):
        assert torch.equal(case.alone(node).run(dead=2)[0], out[node]), node


def test_a_deep_path_over_several_splits_has_the_bits_of_decoding_it() -> None:
    parents = [*range(-1, 37), 3, 20]  # deeper than two splits of a tile, with two twigs
    case = Case.random(parents, 9, heads=(1, 1))
    out = case.run(split=16)
    for node in (6, 7, 22, 23, 37, 38, 39):
        assert torch.equal(case.alone(node).run(split=16)[0], out[node]), node


def test_the_rows_that_share_a_block_do_not_matter() -> None:
    """A row's bits stay when another block size is chosen and it moves within its block."""
    case = Case.random([-1] * 20, 40, heads=(2, 1), dtype=BF16)
    out = case.run()
    first = replace(case, q=case.q[:3], parents=case.parents[:3])
    assert torch.equal(first.run(), out[:3])


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "dense"])
def test_a_permutation_of_siblings_permutes_the_rows(exact: bool) -> None:
    case = Case.random([-1, 0, 0, 0, 1, 2, 3], 21)
    order = [0, 3, 1, 2, 6, 4, 5]  # new place -> old node
    rows = [*range(21), *(21 + x for x in order)]
    parents = [-1 if x == 0 else order.index(case.parents[x]) for x in order]
    moved = Case(case.q[order], case.k[:, rows], case.v[:, rows], parents, 21).run(exact, dead=0)
    expected = case.run(exact)[order]
    if exact:
        assert torch.equal(moved, expected)
    assert max_abs_diff(moved, expected) <= 1e-6


def test_what_a_row_does_not_see_may_hold_anything() -> None:
    case = Case.random([-1, 0, 0, 1], 18)
    expected = case.run()
    case.k[:, 18 + 2], case.v[:, 18 + 2] = float("nan"), float("inf")
    assert torch.equal(case.run()[[0, 1, 3]], expected[[0, 1, 3]])


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
def test_a_chain_is_causal_attention_however_it_is_cut(dtype: torch.dtype) -> None:
    case = Case.random(range(-1, 22), 21, dtype=dtype, dead=0)
    expected = case.run(dead=0)
    for cuts in ([0, 23], [0, 5, 6, 23]):
        for a, b in pairwise(cuts):
            out = torch.empty(b - a, 32, dtype=dtype, device=DEVICE)
            prefix = torch.tensor([21 + a], dtype=torch.int32, device=DEVICE)
            caches = case.k[:, : 21 + b], case.v[:, : 21 + b]
            causal_attention(
                case.q[a:b], *caches, prefix, 21 + b, 0.25, out, split=SPLIT, config=SMALL
            )
            assert torch.equal(out, expected[a:b])


@pytest.mark.parametrize(("heads", "dim", "dtype"), [((4, 2), 64, BF16), ((7, 1), 80, FP32)])
def test_values_of_causal_attention(heads: tuple[int, int], dim: int, dtype: torch.dtype) -> None:
    case = Case.random(range(-1, 30), 100, heads, dim, dtype)
    out = torch.empty(31, heads[0] * dim, dtype=dtype, device=DEVICE)
    prefix = torch.tensor([100], dtype=torch.int32, device=DEVICE)
    causal_attention(case.q, case.k, case.v, prefix, 134, dim**-0.5, out, split=64)
    case.assert_near_torch(out)


@exactness
def test_an_fp8_cache(exact: bool) -> None:
    case = Case.random(random_tree(4), 37, heads=(3, 1), dtype=BF16)
    fp8 = torch.float8_e4m3fn
    caches = {"k": (case.k.float() * 4).to(fp8), "v": (case.v.float() / 8).to(fp8)}
    # Subnormal values and the largest one.
    caches["k"][0, :4, 0] = torch.tensor([2.0**-9, 3 * 2.0**-9, -448.0, 0.0]).to(fp8)
    wide = replace(case, k=caches["k"].float() / 4, v=caches["v"].float() * 8)
    reference = wide.in_torch(torch.float64)
    same = replace(case, k=wide.k.to(BF16), v=wide.v.to(BF16)).in_torch(BF16)
    out = replace(case, **caches).run(exact, k_scale=0.25, v_scale=8.0)
    assert within_reference_noise(out.cpu().float(), same.float(), reference)


@pytest.mark.skipif(sys.platform != "linux", reason="maps address space without memory")
@pytest.mark.skipif(DEVICE.type != "cpu", reason="would take 16 GB of a GPU's memory")
@exactness
@pytest.mark.parametrize("far", ["heads", "rows"])
def test_offsets_beyond_31_bits(far: str, exact: bool) -> None:
    case = Case.random([-1, 0, 0], 18, heads=(2, 2), dtype=BF16, dead=0)
    apart = 2**31 + 64 if far == "heads" else 2**27
    strides = (apart, 16, 1) if far == "heads" else (16, apart, 1)
    elements = sum((n - 1) * s for n, s in zip(case.k.shape, strides, strict=True)) + 1
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # no reserve
        blocks = [mmap.mmap(-1, 2 * elements, flags=flags) for _ in range(2)]
    except OSError as error:
        pytest.skip(f"this machine gives no address space without memory: {error}")
    k, v = (torch.frombuffer(x, dtype=BF16).as_strided(case.k.shape, strides) for x in blocks)
    k.copy_(case.k), v.copy_(case.v)
    assert torch.equal(replace(case, k=k, v=v).run(exact, dead=0), case.run(exact, dead=0))


class Sealed(Tensor):
    """A device tensor that the host may not look into."""

    def refuse(self, *args: object) -> int:
        raise AssertionError("the host waited for the device")

    item = tolist = __int__ = __index__ = __bool__ = __float__ = refuse


@exactness
def test_the_host_never_reads_the_prefix_length(exact: bool) -> None:
    case = Case.random([-1, 0], 20)
    prefix = torch.tensor([20], dtype=torch.int32, device=DEVICE).as_subclass(Sealed)
    out = torch.empty(2, 32, device=DEVICE)
    mask = tree_mask(case.parents).to(DEVICE)
    arguments = case.q, case.k, case.v, mask, prefix, 25, 0.25, out
    tree_attention(*arguments, split=SPLIT, exact=exact, config=SMALL)
    assert torch.equal(out, case.run(exact))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": 24}, "split is 24, allowed: multiples of 16"),
        ({"k_scale": -1.0}, "scale \\* k_scale is -0.25, allowed: finite and above 0"),
        ({"v_scale": float("nan")}, "v_scale is nan"),
        ({"workspace": torch.empty(3)}, "workspace is 3 elements of torch.float32, allowed: 144"),
        ({"config": None, "q": torch.empty(2, 2, 512)}, "k_cache is .*, allowed: q's head size"),
    ],
)
def test_what_no_kernel_serves_is_refused(change: dict[str, object], message: str) -> None:
    case = Case.random([-1, 0], 20)
    if "q" in change:
        q, options = change["q"], {}
        assert isinstance(q, Tensor)
        case = replace(case, q=q)
        options["config"] = SMALL
    else:
        options = change
    with pytest.raises(ValueError, match=message):
        case.run(**options)  # type: ignore[arg-type]


def test_a_split_depends_on_the_limits_of_the_engine_alone() -> None:
    assert [choose_split(length, 8) for length in (1, 4096, 16384, 32768, 131072)] == [
        256, 256, 256, 512, 2048,
    ]  # fmt: skip
    assert choose_split(131072, 1) == 256
