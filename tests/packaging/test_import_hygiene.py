"""What an import does, and what it must not: load heavy libraries, touch CUDA, leave traces.

Each check runs in a process of its own, since this one has imported everything already.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "tokenizers", "numpy", "gguf", "safetensors", "huggingface_hub")

# CUDA may not even be asked: a process that has initialised it cannot fork its workers.
FORBID_CUDA = """
import torch

def refuse(*args, **kwargs):
    raise AssertionError("CUDA was initialised")

torch.cuda._lazy_init = refuse
torch._C._cuda_init = refuse
"""

IMPORT_EVERYTHING = """
import importlib, pkgutil
import ptd_engine

names = [m.name for m in pkgutil.walk_packages(ptd_engine.__path__, "ptd_engine.")]
assert len(names) > 20, names
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
"""


def run(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter, from a folder that is not the repository."""
    return subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:ptd_engine", "-c", code, *args],
        cwd=Path(sys.executable).parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def heavy_modules_after(code: str) -> list[str]:
    """Heavy libraries that a piece of code leaves in sys.modules."""
    report = f"\nimport json, sys\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    result = run(code + report)
    assert result.returncode == 0, result.stderr
    loaded: list[str] = json.loads(result.stdout.splitlines()[-1])
    return loaded


def test_import_loads_nothing_heavy() -> None:
    assert heavy_modules_after("import ptd_engine") == []


def test_the_check_sees_a_heavy_library() -> None:
    assert heavy_modules_after("import ptd_engine.kernels") == ["torch", "numpy"]


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["--version"]])
def test_command_line_help_loads_nothing_heavy(arguments: list[str]) -> None:
    call = f"""
import sys
sys.argv = ["ptd-engine", *{arguments!r}]
from ptd_engine.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
"""
    assert heavy_modules_after(call) == []


def test_importing_every_module_leaves_cuda_alone() -> None:
    result = run(
        FORBID_CUDA + IMPORT_EVERYTHING + "assert not torch.cuda.is_initialized(); print('ok')"
    )
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr


def test_the_check_sees_cuda() -> None:
    result = run(FORBID_CUDA + "torch.cuda.init()")
    assert "CUDA was initialised" in result.stderr


def test_importing_every_module_leaves_no_trace() -> None:
    # torch and transformers are imported first: what they do is not ours.
    result = run(
        "import os, threading, torch, transformers, torch.nn.functional\n"
        "import transformers.generation.utils\n"
        "torch.ones(2) @ torch.ones(2)\n"
        "before = dict(os.environ), threading.active_count(), torch.get_default_dtype(), "
        "torch.get_num_threads(), torch.is_grad_enabled()\n"
        + IMPORT_EVERYTHING
        + "after = dict(os.environ), threading.active_count(), torch.get_default_dtype(), "
        "torch.get_num_threads(), torch.is_grad_enabled()\n"
        "assert before == after, (before, after)\n"
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_forked_child_can_work_after_the_import() -> None:
    result = run(
        IMPORT_EVERYTHING
        + """
import os, torch
child = os.fork()
if child == 0:
    from ptd_engine import _core
    pool = _core.CandidatePool()
    total = float((torch.ones(64, 64) @ torch.ones(64, 64)).sum())
    os._exit(0 if total == 64.0**3 and pool.total_nodes == 0 else 1)
_, status = os.waitpid(child, 0)
raise SystemExit(os.waitstatus_to_exitcode(status))
"""
    )
    assert result.returncode == 0, result.stderr
