"""nvcc compiles the CUDA kernels for every architecture: no spills, shared memory within limits."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from bench import cuda_resources
from bench.cuda_resources import ARCHS, SHARED_LIMIT, Report

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/kernels.md"
NVCC = cuda_resources.find_nvcc()
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc was not found: no CUDA toolkit here")

LOG = """ptxas info    : Compiling entry function '_ZN3ptd4cuda21attention_tree_kernelI6__halfLi80EEEvNS0_1PE' for 'sm_90a'
ptxas info    : Function properties for _ZN3ptd4cuda21attention_tree_kernelI6__halfLi80EEEvNS0_1PE
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 512 bytes cmem[0]
ptxas info    : Compiling entry function '_ZN3ptd4cuda45_N__8a7997de_12_kv_commit_cu_1364ac9b16kv_commit_kernelENS0_14E' for 'sm_80'
ptxas info    : Function properties for x
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 36 registers, used 0 barriers, 440 bytes cmem[0]
"""  # noqa: E501


@pytest.fixture(scope="module")
def reports() -> list[Report]:
    """Of every kernel; compiled once for the same sources and the same nvcc."""
    assert NVCC is not None
    digest = hashlib.sha256(NVCC.encode())
    sources = [*(ROOT / "csrc/cuda").iterdir(), *(ROOT / "csrc/include/ptd/cuda").iterdir()]
    for path in sorted([*sources, Path(cuda_resources.__file__)]):
        digest.update(path.read_bytes())
    kept = ROOT / f"build/cuda_host/resources-{digest.hexdigest()[:16]}.json"
    if not kept.exists():
        found = cuda_resources.measure(NVCC)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps([asdict(report) for report in found]), encoding="utf-8")
    return [Report(**report) for report in json.loads(kept.read_text(encoding="utf-8"))]


@needs_nvcc
@pytest.mark.slow
def test_no_kernel_spills_and_all_fit(reports: list[Report]) -> None:
    kernels = {(report.kernel, report.dtype, report.head_dim) for report in reports}
    assert len(reports) == len(kernels) * len(ARCHS)
    attention = {k for k in kernels if k[0] == "attention_prefix_kernel"}
    assert len(attention) == 15 and len(kernels) == 30 + 3 * 4 + 1
    assert [report for report in reports if not report.passes] == []
    assert all(r.shared > 10_000 for r in reports if r.head_dim or r.kernel == "select_kernel")


@needs_nvcc
@pytest.mark.slow
def test_the_page_has_this_table(reports: list[Report]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    _, begin, rest = page.partition(cuda_resources.BEGIN)
    assert begin, f"{PAGE.name} has no place for the table"
    shown = rest.partition(cuda_resources.END)[0].strip().splitlines()
    # Registers are this compiler's; which kernels there are, and their memory, is ours.
    ours = cuda_resources.table(reports).splitlines()
    assert [_without_registers(line) for line in shown] == [_without_registers(x) for x in ours]


def _without_registers(line: str) -> list[str]:
    cells = line.split("|")
    return cells[:4] + cells[5:]


def test_a_spill_is_seen() -> None:
    tree, commit = cuda_resources.parse(LOG, {("attention_tree_kernel", "float16", 80): 200 << 10})
    assert tree == Report("attention_tree_kernel", "float16", 80, 90, 128, 20, 200 << 10)
    assert commit == Report("kv_commit_kernel", "any", 0, 80, 36, 0, 0)
    assert commit.passes and not tree.passes
    limit = SHARED_LIMIT[80]
    assert Report("k", "float32", 64, 80, 1, 0, limit).passes
    assert not Report("k", "float32", 64, 80, 1, 0, limit + 1).passes
