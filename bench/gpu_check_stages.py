"""The stages of bench/gpu_check.sh. Each is a process, or several, that may fail by itself."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SMI_FIELDS = (
    *("name", "driver_version", "memory.total", "clocks.sm", "clocks.mem", "clocks.max.sm"),
    *("clocks.max.mem", "power.limit", "temperature.gpu"),
)
_VERSIONS = """
import importlib.metadata as m, json
names = ("torch", "triton", "transformers", "pytest", "pybind11", "flash-attn", "flashinfer-python")
found = {}
for name in names:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: found[name] = None
try:
    import torch
    found["cuda"] = torch.version.cuda
    found["device"] = torch.cuda.is_available()
    found["capability"] = torch.cuda.get_device_capability() if found["device"] else None
except ImportError: found["device"] = False
print(json.dumps(found))
"""
_COPY = """
import json, sys, torch
from bench.gpu_timing import copy_bandwidth
print(json.dumps({"copy_gb_s": copy_bandwidth(torch.device(sys.argv[1]))}))
"""
_TAIL = 3000  # characters of a failed process' output that the document keeps
# Processes that run side by side: what a test on a GPU waits for is mostly the compiler.
_ATTENTION = "tests/gpu/test_attention_gpu.py"
_GPU_TESTS = (
    (_ATTENTION, "-k", "triton and values and not float32"),
    (_ATTENTION, "-k", "triton and values and float32"),
    (_ATTENTION, "-k", "not values and not cuda"),
    (_ATTENTION, "-k", "cuda"),
    ("tests/gpu/test_ops_gpu.py",),
    ("tests/gpu/test_model_gpu.py",),
    # Written for the interpreter, and run on the device where there is one.
    ("tests/kernels/test_triton_attention.py",),
    ("tests/kernels/test_triton_linear.py", "tests/kernels/test_triton_ops.py"),
    ("tests/kernels/test_triton_pointwise.py", "tests/kernels/test_triton_select.py"),
)
_REHEARSED = ((_ATTENTION, "-k", "values or token_by_token"),)
# Beside the tests the benchmarks run once for nothing but what they leave in the compilers' caches.
_WARMED = (
    *(("kernels", "--gpu", "--parts", part) for part in ("attention", "linears", "others")),
    ("engine",),
)
# The bench's own time must end before the limit of its stage: the rest is start and last case.
_BENCH_SHARE = 0.6


@dataclass(frozen=True)
class Run:
    """How stages run.

    Attributes:
        root: of the repository.
        environment: of every process.
        rehearse: on the CPU.
    """

    root: Path
    environment: Mapping[str, str]
    rehearse: bool

    def output(self, *command: str, limit: float) -> str:
        """What a command printed. Raises Failed with the end of its output if it fails."""
        process = self.start(command, subprocess.PIPE)
        try:
            printed = process.communicate(timeout=max(0.0, limit))[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            end(process)
            raise
        if process.returncode != 0:
            raise Failed(f"{command[0]} ended with {process.returncode}: {printed[-_TAIL:]}")
        return printed

    def start(self, command: Sequence[str], output: Any) -> subprocess.Popen[bytes]:
        """Start a command in a process group of its own, whose output goes to `output`."""
        return subprocess.Popen(
            command,
            cwd=self.root,
            env=dict(self.environment),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def python(self, *arguments: str, limit: float) -> str:
        """`output` of this Python."""
        return self.output(sys.executable, *arguments, limit=limit)

    def tool(self, name: str) -> str | None:
        """Where a program is, None if nowhere."""
        return shutil.which(name, path=self.environment.get("PATH"))


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process of `Run.start` and those that it started (cmake starts ninja, and so on)."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@dataclass
class Failed(Exception):  # noqa: N818 - a stage has failed
    """A stage's failure, and what it has found nevertheless."""

    why: str
    found: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.why


def machine_facts(run: Run, limit: float) -> dict[str, Any]:
    """Python, versions, tools, commit. Fails where torch sees no device, but for a rehearsal."""
    found: dict[str, Any] = {"python": platform.python_version(), "system": platform.platform()}
    found["versions"] = json.loads(run.python("-c", _VERSIONS, limit=limit).splitlines()[-1])
    nvcc = run.tool("nvcc")
    release = run.output(nvcc, "--version", limit=limit).splitlines() if nvcc else []
    found["nvcc"] = next((line for line in release if "release" in line), None)
    found["commit"] = None
    if run.tool("git"):
        try:
            found["commit"] = run.output("git", "rev-parse", "HEAD", limit=limit).strip()
        except Failed:  # no checkout
            found["commit"] = None
    if not run.rehearse and not found["versions"]["device"]:
        raise Failed("torch sees no CUDA device (--rehearse runs on the CPU)", found)
    return found


def gpu_facts(run: Run) -> dict[str, str] | None:
    """The GPU by nvidia-smi: name, driver, clocks; None without one."""
    if run.rehearse or not run.tool("nvidia-smi"):
        return None
    query = ("nvidia-smi", f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader", "-i=0")
    try:
        values = run.output(*query, limit=5).strip().splitlines()[0].split(", ")
        return dict(zip(_SMI_FIELDS, values, strict=True))
    except (Failed, subprocess.TimeoutExpired, IndexError, ValueError):
        return None


def missing_for_build(run: Run) -> list[str]:
    """What the build of the core needs and this machine has not."""
    modules = ("setuptools", "pybind11")
    script = (
        "import importlib.util as u, sys; print(*(n for n in sys.argv[1:] if not u.find_spec(n)))"
    )
    missing = run.python("-c", script, *modules, limit=60).split()
    programs = {"cmake": ["cmake"], "ninja": ["ninja"], "a C++ compiler": ["c++", "g++", "clang++"]}
    return missing + [name for name, any_of in programs.items() if not any(map(run.tool, any_of))]


def build(run: Run, limit: float) -> dict[str, Any]:
    """ptd_engine._core and, with nvcc, _cuda, compiled in place; what is there already is taken."""
    last = time.monotonic() + limit
    there = _loadable(run, limit)
    found: dict[str, Any] = {"compiled": False, **there}
    if there["_core"] and (there["_cuda"] or not run.tool("nvcc") or run.rehearse):
        return found
    missing = missing_for_build(run)
    if missing:
        why = f"{', '.join(missing)} not found: install them, or put compiled _core and _cuda there"
        if there["_core"]:  # enough for all but kernels="cuda"
            return {**found, "cuda_not_compiled": why}
        raise Failed(why, found)
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    environment = {**run.environment, "PTD_CUDA": "0" if run.rehearse else "auto"}
    if not run.rehearse and (arch := _arch(run)) is not None:
        environment["PTD_CUDA_ARCHS"] = arch
    Run(run.root, environment, run.rehearse).output(*command, limit=last - time.monotonic())
    there = _loadable(run, 60)
    if not there["_core"]:
        raise Failed("compiled, but ptd_engine._core cannot be imported", there)
    return {"compiled": True, **there}


def _loadable(run: Run, limit: float) -> dict[str, bool]:
    script = """
import importlib, json
found = {}
for name in ("_core", "_cuda"):
    try: importlib.import_module(f"ptd_engine.{name}"); found[name] = True
    except ImportError: found[name] = False
print(json.dumps(found))
"""
    loaded: dict[str, bool] = json.loads(run.python("-c", script, limit=limit).splitlines()[-1])
    return loaded


def _arch(run: Run) -> str | None:
    """PTD_CUDA_ARCHS for this GPU alone: a third of the time to compile."""
    script = "import torch; print('%d%d' % torch.cuda.get_device_capability())"
    capability = int(run.python("-c", script, limit=30).split()[-1])
    return {9: "90a", 8: "80", 10: "100"}.get(capability // 10)


def copy_bandwidth(run: Run, limit: float) -> dict[str, Any]:
    """GB/s of a copy in the device's memory, read and written bytes counted."""
    device = "cpu" if run.rehearse else "cuda"
    found: dict[str, Any] = json.loads(
        run.python("-c", _COPY, device, limit=limit).splitlines()[-1]
    )
    return found


def run_tests(run: Run, limit: float, scratch: Path) -> dict[str, Any]:
    """The tests on the device, files side by side: counts of outcomes, what failed and why."""
    last = time.monotonic() + limit
    processes: list[tuple[str, Path, subprocess.Popen[bytes]]] = []
    for i, group in enumerate(_REHEARSED if run.rehearse else _GPU_TESTS):
        report = scratch / f"tests{i}.xml"
        command = [sys.executable, "-m", "pytest", *group, "-v", "-p", "no:cacheprovider"]
        command += ["--tb=short", f"--junitxml={report}"]
        command += ["-m", "gpu"] if "gpu" in group[0] else []
        command += ["--rehearse-gpu"] if run.rehearse else []
        with report.with_suffix(".log").open("wb") as log:
            processes.append((" ".join(group), report, run.start(command, log)))
    warming = [] if run.rehearse else [_warm(run, what, limit) for what in _WARMED]
    found: dict[str, Any] = {"outcomes": {}, "failures": [], "groups": {}}
    for name, report, process in processes:
        try:
            process.wait(max(0.0, last - time.monotonic()))
        except subprocess.TimeoutExpired:
            end(process)
            found["failures"].append({"test": name, "why": f"not done after {limit:.0f} s"})
        log_text = report.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
        if report.exists():
            counts, failures = outcomes(report.read_text(encoding="utf-8"))
            found["failures"] += failures
        else:
            counts = outcomes_so_far(log_text)
        if process.returncode not in (0, 1, -signal.SIGKILL):  # pytest itself, or a crash
            found["failures"].append({"test": name, "why": log_text[-_TAIL:]})
        found["groups"][name] = counts
        for key, count in counts.items():
            found["outcomes"][key] = found["outcomes"].get(key, 0) + count
    for process in warming:
        end(process)
    if found["failures"]:
        raise Failed(f"{len(found['failures'])} failures", found)
    if not found["outcomes"].get("passed"):
        raise Failed("no test passed", found)
    return found


def _warm(run: Run, what: Sequence[str], limit: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench", *what, "--seconds", f"{limit:.0f}"]
    return run.start(command, subprocess.DEVNULL)


def outcomes_so_far(log: str) -> dict[str, int]:
    """Counts from the output of `pytest -v` that did not come to its end."""
    words = re.findall(r"^\S+::.* (PASSED|FAILED|ERROR|SKIPPED)\b", log, re.MULTILINE)
    failed = words.count("FAILED") + words.count("ERROR")
    return {"passed": words.count("PASSED"), "failed": failed, "skipped": words.count("SKIPPED")}


def outcomes(junit: str) -> tuple[dict[str, int], list[dict[str, str]]]:
    """Counts of passed, failed, skipped, of pytest's report, and the failed ones with their end."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    failures = []
    for case in ElementTree.fromstring(junit).iter("testcase"):
        bad = [tag for tag in case if tag.tag in ("failure", "error")]
        if bad:
            counts["failed"] += 1
            name = f"{case.get('classname')}::{case.get('name')}"
            failures.append({"test": name, "why": (bad[0].text or "")[-800:]})
        else:
            skipped = case.find("skipped") is not None
            counts["skipped" if skipped else "passed"] += 1
    return counts, failures


def measure(run: Run, limit: float, scratch: Path) -> dict[str, Any]:
    """`python -m bench kernels --gpu`: its document."""
    return _document(run, limit, scratch, "kernels", "--gpu")


def measure_engine(run: Run, limit: float, scratch: Path) -> dict[str, Any]:
    """`python -m bench engine`: its document."""
    return _document(run, limit, scratch, "engine")


def _document(run: Run, limit: float, scratch: Path, *benchmark: str) -> dict[str, Any]:
    out = scratch / f"{benchmark[0]}.json"
    command = ["-m", "bench", *benchmark, "--seconds", f"{_BENCH_SHARE * limit:.0f}"]
    command += ["--out", str(out), *(["--rehearse"] if run.rehearse else [])]
    failure: Failed | None = None
    try:
        run.python(*command, limit=limit)
    except Failed as error:
        failure = error
    document = read(out)
    if document is None:
        raise failure or Failed("the benchmark wrote no document")
    if failure is not None or not document["correct"]:
        raise Failed("results differ: see what the document names", {"document": document})
    return {"document": document}


def read(path: Path) -> dict[str, Any] | None:
    """A JSON document, None if there is none."""
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document
