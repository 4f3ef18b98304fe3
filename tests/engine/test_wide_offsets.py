"""Caches of more than 2^31 elements: offsets are 64 bits wide in every backend.

The caches are address space of which a few pages are touched.
"""

from __future__ import annotations

import mmap
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ptd_engine.kernels import Ops, select_ops
from ptd_engine.testing.compare import tree_mask

DIM, HEADS, KV_HEADS, PREFIX = 64, 4, 2, 21
FAR = 2**31 + 2**20  # elements; a whole number of rows
PARENTS = [-1, 0, 0, 1, 3]
ROOT = Path(__file__).parents[2]

kernels = pytest.mark.parametrize("ops", ["cpu", "torch"], indirect=True)
linux = pytest.mark.skipif(
    sys.platform != "linux", reason="maps address space without memory as Linux does it"
)
MAP_NORESERVE = 0x4000  # <bits/mman-map-flags-generic.h>; the module mmap may lack the name


@pytest.fixture
def ops(request: pytest.FixtureRequest) -> Ops:
    return select_ops(request.param, dtype=torch.bfloat16, head_dim=DIM)


def reserve(elements: int) -> Tensor:
    """Zeros in bfloat16 that take memory only where they are touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    try:
        block = mmap.mmap(-1, 2 * elements, flags=flags)
    except OSError as error:
        pytest.skip(f"this machine gives no address space without memory: {error}")
    return torch.frombuffer(block, dtype=torch.bfloat16)


def spread(small: Tensor) -> Tensor:
    """A copy of [heads, rows, D] whose heads lie FAR elements apart."""
    heads, rows, dim = small.shape
    whole = reserve((heads - 1) * FAR + rows * dim)
    far = whole.as_strided(small.shape, (FAR, dim, 1))
    far.copy_(small)
    return far


def noise(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@linux
@kernels
def test_heads_that_lie_far_apart(ops: Ops) -> None:
    n = len(PARENTS)
    qkv = noise(n, (HEADS + 2 * KV_HEADS) * DIM, seed=1)
    table = noise(64, DIM, seed=2).float()
    near = [noise(KV_HEADS, PREFIX + n, DIM, seed=seed) for seed in (3, 4)]
    far = [spread(cache) for cache in near]
    prefix = torch.tensor([PREFIX], dtype=torch.int32)
    positions = torch.tensor([PREFIX, *[PREFIX + 1] * 2, PREFIX + 2, PREFIX + 3], dtype=torch.int32)
    results = []
    for k, v in (near, far):
        q, out = torch.empty(n, HEADS, DIM).bfloat16(), torch.empty(n, HEADS * DIM).bfloat16()
        ops.rope_kv_write(qkv, None, None, 1e-5, table, positions, prefix, k, v, q)
        ops.tree_attention(q, k, v, tree_mask(PARENTS), prefix, PREFIX + n, 0.125, out)
        results.append(out)
    assert torch.equal(*results)
    assert all(torch.equal(a, b) for a, b in zip(near, far, strict=True))
    assert not torch.equal(near[0][0], near[0][1])


@linux
@kernels
def test_rows_that_lie_far_from_the_first(ops: Ops) -> None:
    capacity = FAR // DIM + 8  # rows of one head; those of the second layer begin beyond 2^31
    k, v = (reserve(2 * capacity * DIM).view(2, 1, capacity, DIM) for _ in range(2))
    first, path = capacity - 8, (0, 3, 5)
    for cache in (k, v):
        cache[:, :, first:] = noise(2, 1, 8, DIM, seed=5)
    expected = [cache[:, :, [first + i for i in path]].clone() for cache in (k, v)]
    ops.kv_commit(
        k,
        v,
        torch.tensor([first + i for i in path], dtype=torch.int32),
        torch.tensor([first + len(path)], dtype=torch.int32),
        torch.tensor([len(path)], dtype=torch.int32),
    )
    for cache, rows in zip((k, v), expected, strict=True):
        assert torch.equal(cache[:, :, first : first + len(path)], rows)
        assert not cache[1, 0, :4].any()


def test_strides_and_capacities_are_declared_wide() -> None:
    """What an address is computed with is no int: neither in the arguments of the kernels nor
    where Python hands them over.
    """
    declared = []
    for path in [
        *(ROOT / "csrc/include/ptd/cpu").glob("*.h"),
        *(ROOT / "csrc/bindings").glob("cpu*"),
    ]:
        for kind, name in re.findall(
            r"([\w:]+)\s+(\w*(?:head_stride|next_stride|logits_stride|capacity))\s*[;,=)]",
            path.read_text(encoding="utf-8"),
        ):
            if kind != "return":
                declared.append((path.name, name, kind))
    assert len(declared) >= 6
    assert [entry for entry in declared if entry[2] != "std::int64_t"] == []
