"""Every quick variant of the Triton kernels compiles for every GPU, without spills, and fits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is an optional package: pip install triton")

import triton

from ptd_engine.triton_kernels import aot
from ptd_engine.triton_kernels.aot import Report
from ptd_engine.triton_kernels.variants import ARCHS

ROOT = Path(__file__).parents[2]
PINNED = re.search(r"^triton==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def reports() -> list[Report]:
    return aot.check(quick=True, jobs=2)


@pytest.mark.slow
def test_all_compile_without_spills_and_fit(reports: Sequence[Report]) -> None:
    assert [x for x in reports if not x.passes] == []
    assert len(reports) == len(aot.registered(quick=True)) > 40
    assert all(x.registers > 0 for x in reports)


@pytest.mark.slow
def test_each_kernel_is_compiled_for_each_gpu(reports: Sequence[Report]) -> None:
    compiled = {(x.kernel, x.arch) for x in reports}
    names = {v.kernel.__name__ for v, _ in aot.registered(quick=True)}
    assert compiled == {(name, arch) for name in names for arch in ARCHS}


@pytest.mark.slow
def test_attention_runs_on_matrix_units(reports: Sequence[Report]) -> None:
    """16 rows of M an instruction and warp on sm_80, 64 on sm_90: the same for every BLOCK_M."""
    for kernel in ("prefix_kernel", "tail_kernel"):
        for arch, instruction in ((80, "instrShape = [16, 8]"), (90, "instrShape = [16, 64, 16]")):
            found = [
                x.layouts
                for x in reports
                if (x.kernel, x.arch) == (kernel, arch) and x.variant.startswith("bf16")
            ]
            assert found
            assert all(any(instruction in layout for layout in layouts) for layouts in found)


@pytest.mark.slow
@pytest.mark.skipif(
    PINNED is None or triton.__version__ != PINNED[1],
    reason="the table is of the pinned Triton; another one allocates other registers",
)
def test_the_table_in_the_documentation_is_current(reports: Sequence[Report]) -> None:
    """Renew it with: python -m ptd_engine.triton_kernels.aot --write docs/kernels.md."""
    document = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    assert f"{aot.BEGIN}\n{aot.table(reports)}\n{aot.END}" in document


@pytest.mark.parametrize(
    ("change", "passes"),
    [
        ({}, True),
        ({"spilled": 4}, False),
        ({"shared": 232449}, False),
        ({"error": "CompilationError"}, False),
    ],
)
def test_what_fails_a_variant(change: dict[str, int | str], passes: bool) -> None:
    report = {"registers": 99, "shared": 232448, "limit": 232448, **change}
    assert Report("kernel", "variant", 90, **report).passes is passes  # type: ignore[arg-type]


def test_the_table_is_written_between_its_marks(tmp_path: Path) -> None:
    path = tmp_path / "kernels.md"
    path.write_text(f"before\n{aot.BEGIN}\nold\n{aot.END}\nafter\n", encoding="utf-8")
    text = aot.table([Report("a", "b", 80, 1, 0, 2048, 4096), Report("a", "b", 90, error="no")])
    aot.write_table(path, text)
    assert path.read_text(encoding="utf-8") == (
        f"before\n{aot.BEGIN}\n| kernel | variant | sm_80 | sm_90 |\n|---|---|---|---|\n"
        f"| `a` | b | 1 regs, 2 KB | does not compile |\n{aot.END}\nafter\n"
    )
    path.write_text("no marks", encoding="utf-8")
    with pytest.raises(ValueError, match="kernels:aot"):
        aot.write_table(path, text)
