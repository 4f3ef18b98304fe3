"""Ancestors of tree nodes from their mask words, on the device, against the tree itself."""

from __future__ import annotations

import random

import pytest
import torch

pytest.importorskip("triton", reason="Triton is an optional package: pip install triton")

import triton
import triton.language as tl

from kernels.conftest import KERNEL_DEVICE
from ptd_engine.testing.compare import tree_depths, tree_mask
from ptd_engine.triton_kernels.ancestors import ancestor_at, depth_of


@triton.jit
def path_kernel(
    mask: tl.tensor, nodes: tl.tensor, depths: tl.tensor, paths: tl.tensor, WORDS: tl.constexpr
) -> None:
    """The depth and the path of node number nodes[program], 256 places a path."""
    node = tl.load(nodes + tl.program_id(0))
    tl.store(depths + tl.program_id(0), depth_of(mask, node, WORDS))
    at = tl.arange(0, 256)
    tl.store(paths + tl.program_id(0) * 256 + at, ancestor_at(mask, node, at, WORDS))


def chain(n: int) -> list[int]:
    return list(range(-1, n - 1))


def star(n: int) -> list[int]:
    return [-1] + [0] * (n - 1)


def deep(n: int) -> list[int]:
    generator = random.Random(n)
    return [-1, *(generator.randrange(max(0, i - 3), i) for i in range(1, n))]


@pytest.mark.parametrize("tree", [chain, star, deep])
@pytest.mark.parametrize("n", [1, 31, 33, 64, 65, 128, 129, 192, 255, 256])
def test_paths_over_the_edges_of_words(n: int, tree: object) -> None:
    assert callable(tree)
    parents = tree(n)
    chosen = sorted({x for x in (0, 30, 31, 32, 62, 63, 64, 127, 128, 191, 192, n - 1) if x < n})
    mask = tree_mask(parents).to(KERNEL_DEVICE)
    nodes = torch.tensor(chosen, dtype=torch.int32, device=KERNEL_DEVICE)
    depths = torch.full_like(nodes, -7)
    paths = torch.full((len(chosen), 256), -7, device=KERNEL_DEVICE)
    path_kernel[(len(chosen),)](mask, nodes, depths, paths, WORDS=mask.shape[1])
    expected = tree_depths(parents)
    for i, node in enumerate(chosen):
        path = [node]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        assert int(depths[i]) == expected[node]
        assert paths[i, : len(path)].tolist() == path[::-1]
        assert not paths[i, len(path) :].any()  # none there
