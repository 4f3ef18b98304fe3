"""The layering holds: for Python imports, lazy ones too, and for the #includes of csrc."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from layer_rules import (
    PACKAGE,
    PYTHON_RULES,
    cxx_sources,
    import_graph,
    include_violations,
    python_sources,
    python_violations,
)

ROOT = Path(__file__).parents[2]
PYTHON = python_sources(ROOT / PACKAGE) | python_sources(ROOT / "triton_kernels", PACKAGE)
CXX = cxx_sources(ROOT / "csrc")


def test_python_imports_follow_the_layers() -> None:
    assert len(PYTHON) > 20, "the package was not found"
    assert python_violations(PYTHON) == []


def test_includes_follow_the_layers() -> None:
    assert len(CXX) > 15, "the C++ sources were not found"
    assert include_violations(CXX) == []


def test_the_table_itself_has_no_cycle() -> None:
    order = TopologicalSorter({name: rule.components for name, rule in PYTHON_RULES.items()})
    assert set(order.static_order()) == set(PYTHON_RULES)


def test_modules_have_no_import_cycle() -> None:
    TopologicalSorter(import_graph(PYTHON)).prepare()  # raises CycleError


def test_a_planted_cycle_is_found() -> None:
    planted = {
        f"{PACKAGE}.model": ("from .forward import run\n", True),
        f"{PACKAGE}.model.forward": ("from ptd_engine.model.rope import table\n", False),
        f"{PACKAGE}.model.rope": ("def table():\n    from . import forward\n", False),
    }
    with pytest.raises(CycleError):
        TopologicalSorter(import_graph(planted)).prepare()


def test_every_folder_of_the_package_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / PACKAGE).rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        ("runner.eager", "from ptd_engine.drafters import make_drafter", "runner.*drafters"),
        ("runner.eager", "def f():\n    from ..drafters import make_drafter", "runner.*drafters"),
        ("kernels.ops", "from ptd_engine import model", "kernels.*model"),
        ("kernels.ops", "import ptd_engine.kv_cache as kv", "kernels.*kv_cache"),
        ("engine", "from . import text", "engine.*text"),
        ("engine", "import importlib\nimportlib.import_module('ptd_engine.llm')", "engine.*llm"),
        ("engine", "from ptd_engine import LLM", "engine must not import ptd_engine"),
        ("engine", "if True:\n    import transformers", "engine.*transformers"),
        ("llm", "from ptd_engine.testing import tiny", "llm.*testing"),
        ("llm", "from .cli import main", "llm.*cli"),
        ("errors", "from ptd_engine.config import PTDConfig", "errors.*config"),
        ("metrics", "import torch", "metrics.*torch"),
        ("config", "from numpy.typing import NDArray", "config.*numpy"),
        ("drafters", "from ptd_engine.kernels import Ops", "drafters.*kernels"),
        ("model.forward", "import tests.reference", "model.*tests"),
        ("brand_new", "", "brand_new has no layer"),
    ],
)
def test_a_planted_import_is_found(module: str, source: str, reason: str) -> None:
    planted = {f"{PACKAGE}.{module}": (f"import json\n{source}\n", False)}
    (found,) = python_violations(planted)
    assert found.startswith(f"{PACKAGE}.{module}:")
    assert re.search(reason, found), found


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("core/rng.cpp", "#include <torch/torch.h>"),
        ("core/rng.cpp", "#include <pybind11/pybind11.h>"),
        ("core/rng.cpp", '#include "../bindings/bindings.h"'),
        ("core/rng.cpp", '  #  include "ptd/cuda/launch.h"'),
        ("include/ptd/types.h", "#include <cuda_runtime.h>"),
        ("include/ptd/types.h", "#include <Python.h>"),
        ("include/ptd/types.h", '#include "types.h"'),
        ("include/ptd/cuda/types.h", "#include <cuda_runtime.h>"),
        ("cpu/kernels.cpp", "#include <cuda_runtime_api.h>"),
        ("cuda/select.cu", "#include <c10/cuda/CUDAStream.h>"),
        ("cuda/select.cu", '#include "ptd/rng.h"'),
        ("bindings/trees.cpp", "#include <ATen/ATen.h>"),
        ("tests/test_rng.cpp", "#include <pybind11/embed.h>"),
        ("brand_new/file.cpp", ""),
    ],
)
def test_a_planted_include_is_found(path: str, line: str) -> None:
    (found,) = include_violations({path: f"// why\n#include <vector>\n{line}\n"})
    assert found.startswith(f"{path}:{3 if line else 1}: ")


def test_what_the_layers_allow_is_not_reported() -> None:
    source = "import os\nimport torch\nfrom . import rope\nfrom ..kernels.ops import Ops\n"
    assert python_violations({f"{PACKAGE}.model.forward": (source, False)}) == []
    assert include_violations({"core/a.cpp": '#include "ptd/rng.h"\n#include <cstdint>\n'}) == []
