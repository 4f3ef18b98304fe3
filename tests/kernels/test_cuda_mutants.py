"""Mistakes planted in the CUDA kernels: the tests in csrc/tests find each of them.

The kernels run on the CPU, thread by thread in several orders, so a missing barrier is as visible
as a wrong bit.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kernels import cuda_host

ATTENTION = ("cuda_attention_test", ("tree_attention_bf16.cu",))
SELECT = ("cuda_select_test", ("select.cu",))
POINTWISE = ("cuda_pointwise_test", ("kv_commit.cu", "rope_kv_write.cu", "pointwise.cu"))
PREFIX, TREE, MATH = "attention_prefix.cuh", "attention_tree.cuh", "attention_math.cuh"

MUTANTS = {
    "a tile is read before all of it has landed": (
        *ATTENTION,
        PREFIX,
        "    __syncthreads();\n    if (has_rows)",
        "    if (has_rows)",
    ),
    "a stage is refilled while it is read": (
        *ATTENTION,
        PREFIX,
        "    __syncthreads();  // before the next copies land in this stage\n",
        "",
    ),
    "copies are not waited for": (*ATTENTION, PREFIX, "wait_copies<1>()", "wait_copies<2>()"),
    "the prefix is one longer": (
        *ATTENTION,
        PREFIX,
        "min_of(prefix / kTile, ",
        "min_of((prefix + 1) / kTile, ",
    ),
    "the bit of a neighbour": (
        *ATTENTION,
        TREE,
        "if ((bits >> j & 1) != 0) shared[count_ + __popcll(below)] = 64 * w + j;",
        "if ((bits >> j & 1) != 0) shared[count_ + __popcll(below)] = (64 * w + j) ^ 1;",
    ),
    "the first word of the mask for all": (*ATTENTION, TREE, "? mask[w] &", "? mask[0] &"),
    "the state of a split that nobody wrote": (
        *ATTENTION,
        TREE,
        "if (first_tile_of(open_split, p.split_tiles) != first_tile) load(open_split);",
        "load(open_split);",
    ),
    "the open split is forgotten": (
        *ATTENTION,
        TREE,
        "if (first_tile_of(open_split, p.split_tiles) != first_tile) load(open_split);",
        "",
    ),
    "a new split goes on with the last one's state": (
        *ATTENTION,
        TREE,
        "if (first_tile_of(split_of(tile, p.split_tiles), p.split_tiles) == tile) {",
        "if (prefix < 0) {",
    ),
    "a tile is gathered over one in use": (
        *ATTENTION,
        TREE,
        "      __syncthreads();  // everybody is done with the tile before\n",
        "",
    ),
    "one dead position counts": (
        *ATTENTION,
        TREE,
        "min_of<std::int64_t>(end - tile * kTile, kTile)",
        "min_of<std::int64_t>(end - tile * kTile + 1, kTile)",
    ),
    "weights are rescaled by the wrong row": (
        *ATTENTION,
        MATH,
        "acc[g][i] = __fmul_rn(acc[g][i], rescale[i / 2]);",
        "acc[g][i] = __fmul_rn(acc[g][i], rescale[i % 2]);",
    ),
    "partial sums are read too early": (
        *SELECT,
        "select_row.cuh",
        "  __syncthreads();\n  value = shared.partial[0];",
        "  value = shared.partial[0];",
    ),
    "a tie goes to the highest id": (
        *SELECT,
        "select_row.cuh",
        "(0xffffffffu - static_cast<unsigned>(id));",
        "static_cast<unsigned>(id);",
    ),
    "top-k keeps one less": (
        *SELECT,
        "select_filter.cuh",
        "limit.count = static_cast<unsigned>(top_k);",
        "limit.count = static_cast<unsigned>(max_of(top_k - 1, 1.0f));",
    ),
    "rows are written before all of a batch are read": (
        *POINTWISE,
        "kv_commit.cu",
        "(first + begin + k) * row_bytes",
        "(first + n - 1 - begin - k) * row_bytes",
    ),
    "the wrong sign of the sine": (
        *POINTWISE,
        "rope_kv_write.cu",
        "__fmaf_rn(-b, s, __fmul_rn(a, c))",
        "__fmaf_rn(b, s, __fmul_rn(a, c))",
    ),
}


@pytest.fixture(scope="module")
def statuses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Exit status of the test over each mutant, two at a time."""
    cuda_host.kernel_objects()

    def run(mutant: str) -> int:
        test, sources, name, old, new = MUTANTS[mutant]
        folder = tmp_path_factory.mktemp("mutant")
        return cuda_host.run_mutant(test, {name: (old, new)}, sources, folder)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(MUTANTS, pool.map(run, MUTANTS), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_mistake_is_found(mutant: str, statuses: dict[str, int]) -> None:
    assert statuses[mutant] != 0


@pytest.mark.parametrize("test", sorted({mutant[0] for mutant in MUTANTS.values()}))
def test_without_a_mistake_all_is_well(test: str, tmp_path: Path) -> None:
    assert cuda_host.run_mutant(test, {}, (), tmp_path) == 0
