"""Where a figure was measured: versions, machine, GPU, commit."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import ptd_engine

_ROOT = Path(__file__).resolve().parents[1]
# Far beyond most caches, and on a GPU long enough that the launch does not count.
_READ_BYTES = {"cpu": 512 * 2**20, "cuda": 2048 * 2**20}
_READ_PASSES = 9
_GPU_FIELDS = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit")


@dataclass(frozen=True, slots=True)
class ReadBandwidth:
    """Memory read bandwidth in GB/s (10^9 bytes): median and best of several streaming reads."""

    median_gb_s: float
    best_gb_s: float

    def as_dict(self) -> dict[str, float]:
        """Fields of a document."""
        return {
            "memory_read_gb_s": round(self.median_gb_s, 2),
            "memory_read_best_gb_s": round(self.best_gb_s, 2),
        }


def read_bandwidth(device: torch.device, nbytes: int | None = None) -> ReadBandwidth:
    """Measure how fast `device` reads a large array, with torch's threads.

    A float32 dot product of the array with itself: one stream, and too little arithmetic to matter.
    """
    size = _READ_BYTES[device.type] if nbytes is None else nbytes
    data = torch.ones(size // 4, dtype=torch.float32, device=device)
    rates = []
    for _ in range(1 + _READ_PASSES):
        _synchronize(device)
        start = time.perf_counter()
        torch.dot(data, data)
        _synchronize(device)
        rates.append(data.nbytes / (time.perf_counter() - start) / 1e9)
    timed = rates[1:]  # the first pass pays for page tables and warm-up
    return ReadBandwidth(statistics.median(timed), max(timed))


def versions() -> dict[str, str | None]:
    """Versions of what decides the figures."""
    return {
        "ptd_engine": ptd_engine.__version__,
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "python": platform.python_version(),
    }


def machine(bandwidth: ReadBandwidth | None = None) -> dict[str, Any]:
    """CPU model, cores, threads, memory and its read bandwidth (measured here if not given)."""
    load = os.getloadavg()[0]  # before the measurement adds to it
    measured = bandwidth or read_bandwidth(torch.device("cpu"))
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        **measured.as_dict(),
        "load_average": round(load, 2),
        "system": f"{platform.system()} {platform.machine()}",
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
    }


def gpu(device: torch.device | None = None) -> dict[str, Any] | None:
    """The GPU with its clocks, None without one (or if `device` is a CPU)."""
    if not torch.cuda.is_available() or (device is not None and device.type != "cuda"):
        return None
    index = torch.cuda.current_device() if device is None or device.index is None else device.index
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "memory_gb": round(properties.total_memory / 1e9, 1),
        "compute_capability": f"{properties.major}.{properties.minor}",
        **read_bandwidth(torch.device("cuda", index)).as_dict(),
        **_nvidia_smi(str(properties.uuid)),
    }


def git_state() -> dict[str, Any]:
    """The commit, and whether tracked files differ from it; None outside a checkout."""
    commit = _output("git", "-C", str(_ROOT), "rev-parse", "HEAD")
    changes = _output("git", "-C", str(_ROOT), "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else changes != ""}


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _nvidia_smi(uuid: str) -> dict[str, str]:
    query = f"--query-gpu={','.join(_GPU_FIELDS)}"
    found = _output("nvidia-smi", f"--id=GPU-{uuid}", query, "--format=csv,noheader")
    values = found.split(", ") if found else []
    return dict(zip(_GPU_FIELDS, values, strict=True)) if len(values) == len(_GPU_FIELDS) else {}


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
