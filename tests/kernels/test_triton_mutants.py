"""Faults planted into the Triton attention kernels are caught by the tests' own comparisons."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is an optional package: pip install triton")

from ptd_engine.triton_kernels import tree_attention as launchers
from ptd_engine.triton_kernels import tree_attention_prefix

from .test_triton_attention import Case

FOLDER = Path(tree_attention_prefix.__file__).parent
PACKAGE = "ptd_engine.triton_kernels"
PARENTS = [-1, 0, 0, 1, 2, 3, 5]
PREFIX = 53  # a split, a complete tile of the next one, five positions of an incomplete one


def near_torch() -> None:
    case = Case.random(PARENTS, PREFIX)
    case.assert_near_torch(case.run())


def near_torch_dense() -> None:
    case = Case.random(PARENTS, PREFIX)
    case.assert_near_torch(case.run(exact=False))


def as_decoded() -> None:
    case = Case.random(PARENTS, PREFIX)
    assert torch.equal(case.alone(6).run()[0], case.run()[6])


def plant(folder: Path, module: str, old: str, new: str, kernel: str) -> object:
    """The kernel of a copy of the module in which `old` reads `new`."""
    source = (FOLDER / f"{module}.py").read_text(encoding="utf-8")
    assert source.count(old) >= 1, old
    path = folder / f"{module}.py"  # a file: the interpreter reads the source of a kernel
    path.write_text(source.replace(old, new), encoding="utf-8")
    name = f"{PACKAGE}.planted_{module}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    planted = importlib.util.module_from_spec(spec)
    sys.modules[name] = planted
    try:
        spec.loader.exec_module(planted)
    finally:
        del sys.modules[name]
    return getattr(planted, kernel)


@pytest.mark.parametrize(
    ("kernel", "old", "new", "check"),
    [
        ("tail", "seen = at <= position", "seen = at < position", near_torch),
        ("tail", "seen = at <= position", "seen = at <= position + 1", near_torch),
        ("tail", "at < prefix_len, at", "at < prefix_len - 1, at", near_torch),
        ("tail", "row, at - prefix_len", "row, at - prefix_len + 1", as_decoded),
        ("tail", "tl.range(0, split,", "tl.range(1, split,", near_torch),
        ("tail", "where(s * SPLIT < complete", "where(s * SPLIT < 0", near_torch),
        ("tail", "complete = first_tile * TILE", "complete = prefix_len", near_torch),
        ("prefix", "// TILE * TILE", "// TILE * TILE - TILE", near_torch),
        ("prefix", "r // GROUP", "r % GROUP", near_torch),
        ("dense", "(63 - shift)) << 1", "(63 - shift))", near_torch_dense),
        ("dense", "start - prefix_len, live", "start - prefix_len + 1, live", near_torch_dense),
        ("combine", "tl.cdiv(complete, SPLIT)", "complete // SPLIT", near_torch_dense),
    ],
)
def test_a_planted_fault_is_caught(
    kernel: str,
    old: str,
    new: str,
    check: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = f"tree_attention_{'dense' if kernel == 'combine' else kernel}"
    planted = plant(tmp_path, module, old, new, f"{kernel}_kernel")
    monkeypatch.setattr(launchers, f"{kernel}_kernel", planted)
    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize("check", [near_torch, near_torch_dense, as_decoded])
def test_without_a_fault_the_same_comparisons_hold(check: Callable[[], None]) -> None:
    check()
