"""What bench/gpu_check.sh runs: stages with time limits, and one JSON document of all of them.

Only the standard library is imported, each stage is a process of its own: whatever is missing or
hangs, the document says so and keeps the other stages.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.gpu_check_stages import (
    Failed,
    Run,
    build,
    copy_bandwidth,
    gpu_facts,
    machine_facts,
    measure,
    measure_engine,
    run_tests,
)

ROOT = Path(__file__).resolve().parents[1]

# Seconds. Together, on a GPU, under six minutes.
LIMITS = {"machine": 25, "build": 85, "bandwidth": 15, "tests": 70, "bench": 70, "engine": 90}
REHEARSAL_LIMIT = 240  # of each stage: CPUs are slow, shared, and have to compile the CUDA kernels


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages; returns 0 if all went well, 1 if something failed, 2 for a bad argument."""
    parser = argparse.ArgumentParser(prog="bench/gpu_check.sh", description=__doc__)
    parser.add_argument("--out", type=Path, metavar="FILE", help="of the document")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with tiny shapes")
    args = parser.parse_args(argv)
    folder = os.environ.get("OUT") or str(ROOT / "build")
    out = args.out or Path(folder) / "gpu_check.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    document = check(rehearse=args.rehearse)
    line = json.dumps(document, allow_nan=False)
    out.write_text(line + "\n", encoding="utf-8")
    print(line, flush=True)
    return 0 if document["ok"] else 1


def check(*, rehearse: bool) -> dict[str, Any]:
    """All stages; a stage that failed has `error` in place of what it would have found."""
    begin = time.monotonic()
    stages: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        run = Run(ROOT, environment(rehearse=rehearse), rehearse)
        work: Mapping[str, Callable[[Run, float], dict[str, Any]]] = {
            "machine": machine_facts,
            "build": build,
            "bandwidth": copy_bandwidth,
            "tests": lambda run, limit: run_tests(run, limit, scratch),
            "bench": lambda run, limit: measure(run, limit, scratch),
            "engine": lambda run, limit: measure_engine(run, limit, scratch),
        }
        for stage, call in work.items():
            limit = REHEARSAL_LIMIT if rehearse else LIMITS[stage]
            print(f"--- {stage} (at most {limit} s)", flush=True)
            stages[stage] = staged(call, run, limit)
            if "error" in stages[stage]:
                print(f"{stage} FAILED: {stages[stage]['error']}", flush=True)
    stages["machine"]["gpu"] = gpu_facts(run)
    stages["machine"]["copy_gb_s"] = stages["bandwidth"].get("copy_gb_s")
    return {
        "check": "gpu",
        "rehearsal": rehearse,
        "ok": all(stage["ok"] for stage in stages.values()),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - begin, 1),
        **stages,
    }


def staged(call: Callable[[Run, float], dict[str, Any]], run: Run, limit: float) -> dict[str, Any]:
    """What a stage found, `ok` and `seconds`; with `error` where it failed or took too long."""
    begin = time.monotonic()
    try:
        found = {"ok": True, **call(run, limit)}
    except Failed as failure:
        found = {"ok": False, "error": str(failure), **failure.found}
    except subprocess.TimeoutExpired:
        found = {"ok": False, "error": f"took longer than {limit:.0f} s"}
    return {**found, "seconds": round(time.monotonic() - begin, 1)}


def environment(*, rehearse: bool) -> dict[str, str]:
    """Of the stages: this tree's modules first, its Triton package found where it lies."""
    own = dict(os.environ)
    paths = [str(ROOT), str(ROOT / "bench" / "in_place"), own.get("PYTHONPATH", "")]
    own["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    own.setdefault("OMP_WAIT_POLICY", "passive")
    own["TRITON_INTERPRET"] = "1" if rehearse else "0"
    if rehearse:
        own["CUDA_VISIBLE_DEVICES"] = ""
    tools = Path(sys.executable).parent  # cmake and ninja may lie beside an unactivated Python
    nvcc = [] if shutil.which("nvcc") else ["/usr/local/cuda/bin"]
    own["PATH"] = os.pathsep.join([str(tools), own.get("PATH", ""), *nvcc])
    return own


if __name__ == "__main__":
    sys.exit(main())
