"""bench/gpu_check.sh: rehearsed as a whole, and its stages where something is missing or fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
JUNIT = """<testsuites><testsuite>
<testcase classname="a" name="one"/>
<testcase classname="a" name="two"><failure message="m">assert 1 == 2</failure></testcase>
<testcase classname="a" name="three"><skipped message="no CUDA device"/></testcase>
<testcase classname="a" name="four"><error message="m">fixture</error></testcase>
</testsuite></testsuites>"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def run_of(root: Path, environment: Mapping[str, str] | None = None) -> Any:
    from bench.gpu_check_stages import Run

    return Run(root, dict(os.environ) if environment is None else environment, rehearse=True)


def test_the_rehearsal(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is an optional package: pip install triton")
    out = tmp_path / "new" / "check.json"
    command = ["bash", "bench/gpu_check.sh", "--rehearse", "--out", str(out)]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(out.read_text(encoding="utf-8"))
    assert json.loads(done.stdout.splitlines()[-1]) == document
    assert document["ok"] and document["rehearsal"]
    assert document["machine"]["copy_gb_s"] > 0 and document["machine"]["gpu"] is None
    assert document["machine"]["versions"]["torch"]
    assert document["build"]["_core"] and not document["build"]["compiled"]
    assert document["tests"]["outcomes"] == {"passed": 4, "failed": 0, "skipped": 0}
    measured = document["bench"]["document"]["results"]
    kernels = {row["kernel"] for row in measured["attention"]}
    assert kernels == {"triton", "triton dense", "sdpa", "flex"}
    assert len(measured["linears"]) == 8 and not measured["mismatches"]
    engine = document["engine"]["document"]["results"]
    assert all(row["identical"] for row in engine["verify"])
    assert {(r["drafter"], r["temperature"]) for r in engine["verify"]} == {
        (drafter, temperature)
        for drafter in ("none", "ptd:width=4,depth=6", "hybrid")
        for temperature in (0.0, 0.8)
    }
    names = [row["engine"] for row in engine["decode"]]
    assert names == ["none", "ptd", "hybrid", "transformers, eager", "transformers, static cache"]
    assert [(r["prefix"], r["rows"]) for r in engine["steps"]] == [
        (20, 1),
        (20, 8),
        (40, 1),
        (40, 8),
    ]
    assert all(row["root_equal"] and row["launch_us"] > 0 for row in engine["steps"])
    assert [row["model"] for row in engine["launches"]] == ["tiny"] and not engine["left_out"]


def test_what_fails_is_recorded_beside_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import gpu_check
    from bench.gpu_check_stages import Failed

    def fails(run: Any, limit: float) -> dict[str, Any]:
        raise Failed("cmake, ninja not found", {"_core": False})

    def hangs(run: Any, limit: float, scratch: Path) -> dict[str, Any]:
        raise subprocess.TimeoutExpired("pytest", limit)

    monkeypatch.setattr(gpu_check, "machine_facts", lambda run, limit: {"python": "3"})
    monkeypatch.setattr(gpu_check, "build", fails)
    monkeypatch.setattr(gpu_check, "copy_bandwidth", lambda run, limit: {"copy_gb_s": 1.0})
    monkeypatch.setattr(gpu_check, "run_tests", hangs)
    for name in ("measure", "measure_engine"):
        monkeypatch.setattr(gpu_check, name, lambda run, limit, scratch: {"document": {}})
    monkeypatch.setattr(gpu_check, "gpu_facts", lambda run: None)
    document = gpu_check.check(rehearse=False)
    assert not document["ok"] and document["bench"]["ok"] and document["machine"]["ok"]
    assert document["build"]["error"] == "cmake, ninja not found"
    assert document["build"]["_core"] is False
    assert document["tests"]["error"] == f"took longer than {gpu_check.LIMITS['tests']} s"


def test_the_limits_are_six_minutes() -> None:
    from bench.gpu_check import LIMITS

    assert sum(LIMITS.values()) <= 355  # and nvidia-smi


def test_a_failed_first_stage_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import gpu_check
    from bench.gpu_check_stages import Failed

    def fails(run: Any, limit: float) -> dict[str, Any]:
        raise Failed("torch sees no CUDA device")

    monkeypatch.setattr(gpu_check, "machine_facts", fails)
    for name in ("build", "copy_bandwidth"):
        monkeypatch.setattr(gpu_check, name, lambda run, limit: {})
    for name in ("run_tests", "measure", "measure_engine"):
        monkeypatch.setattr(gpu_check, name, lambda run, limit, scratch: {})
    monkeypatch.setattr(gpu_check, "gpu_facts", lambda run: None)
    document = gpu_check.check(rehearse=True)
    assert not document["ok"] and document["machine"]["error"] == "torch sees no CUDA device"
    assert document["machine"]["copy_gb_s"] is None and document["bandwidth"]["ok"]


def test_what_a_build_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import gpu_check_stages as stages

    absent = {"_core": False, "_cuda": False}
    monkeypatch.setattr(stages, "_loadable", lambda run, limit: absent)
    with pytest.raises(stages.Failed, match=r"cmake, ninja, a C\+\+ compiler not found: install"):
        stages.build(run_of(ROOT, {"PATH": str(tmp_path)}), 60)
    # A machine whose Python has nothing but the standard library.
    run = run_of(ROOT, {"PATH": str(tmp_path)})
    monkeypatch.setattr(
        type(run), "python", lambda self, *arguments, limit: "setuptools pybind11\n"
    )
    assert stages.missing_for_build(run)[:2] == ["setuptools", "pybind11"]


def test_a_compiled_core_is_taken_where_nothing_can_be_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench import gpu_check_stages as stages

    (tmp_path / "nvcc").touch(mode=0o755)
    there = {"_core": True, "_cuda": False}
    monkeypatch.setattr(stages, "_loadable", lambda run, limit: there)
    run = stages.Run(ROOT, {"PATH": str(tmp_path)}, rehearse=False)
    found = stages.build(run, 60)
    assert not found["compiled"] and "cmake" in found["cuda_not_compiled"]
    there["_cuda"] = True
    assert stages.build(run, 60) == {"compiled": False, "_core": True, "_cuda": True}


def test_outcomes_are_counted() -> None:
    from bench.gpu_check_stages import outcomes, outcomes_so_far

    counts, failures = outcomes(JUNIT)
    assert counts == {"passed": 1, "failed": 2, "skipped": 1}
    assert failures == [
        {"test": "a::two", "why": "assert 1 == 2"},
        {"test": "a::four", "why": "fixture"},
    ]
    log = "t.py::a[x y] PASSED [ 1%]\nt.py::b FAILED [ 2%]\nt.py::c SKIPPED (no)\nt.py::d "
    assert outcomes_so_far(log) == {"passed": 1, "failed": 1, "skipped": 1}


def test_failing_and_unfinished_tests_fail_their_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench import gpu_check_stages as stages

    files = {
        "test_one.py": "def test_a():\n    assert 1 == 2\ndef test_b():\n    pass\n",
        "test_two.py": "import time\ndef test_c():\n    pass\ndef test_d():\n    time.sleep(100)\n",
    }
    # The option of this repository's conftest.
    option = "parser.addoption('--rehearse-gpu', action='store_true')"
    files["conftest.py"] = f"def pytest_addoption(parser):\n    {option}\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(stages, "_REHEARSED", (("test_one.py",), ("test_two.py",)))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(stages.Failed, match="2 failures") as failure:
        stages.run_tests(run_of(tmp_path), 15, scratch)
    found = failure.value.found
    assert found["outcomes"] == {"passed": 2, "failed": 1, "skipped": 0}
    assert [f["test"] for f in found["failures"]] == ["test_one::test_a", "test_two.py"]
    assert "assert 1 == 2" in found["failures"][0]["why"]


def test_a_stage_ends_with_all_that_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    script = f"(sleep 3; touch {mark}) & wait"
    with pytest.raises(subprocess.TimeoutExpired):
        run_of(tmp_path).output("bash", "-c", script, limit=0.5)
    time.sleep(3.5)
    assert not mark.exists()
