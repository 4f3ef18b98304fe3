"""`ptd-engine doctor`: what this machine and this installation offer; it never fails."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

import ptd_engine
from ptd_engine.cli.report import print_table

Row = tuple[str, str]

# Instruction sets that decide how fast a CPU multiplies matrices.
_CPU_FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
_CPU_FLAGS_ARM = ("asimd", "bf16", "i8mm", "sve")
_HEAD_DIM = 64  # the kernels are probed for a common head size


def doctor() -> None:
    """Report Python, torch, CPU, GPU, kernels and packages, with reasons for what is missing."""
    from rich.markup import escape
    from rich.table import Table

    sections: tuple[tuple[str, Callable[[], Iterable[Row]]], ...] = (
        ("Runtime", _runtime),
        ("CPU", _cpu),
        ("GPU", _gpu),
        ("Kernels", _kernels),
        ("Packages", _packages),
    )
    for title, collect in sections:
        table = Table("", "", title=title, title_justify="left", show_header=False)
        for name, value in _guarded(collect):
            table.add_row(escape(name), escape(value))
        print_table(table)


def _guarded(collect: Callable[[], Iterable[Row]]) -> list[Row]:
    rows: list[Row] = []
    try:
        rows.extend(collect())
    except Exception as error:  # a broken installation is what this command is for
        rows.append(("not available", _describe(error)))
    return rows


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _runtime() -> Iterable[Row]:
    yield "ptd_engine", f"{ptd_engine.__version__} in {Path(ptd_engine.__file__).parent}"
    yield "python", f"{platform.python_version()} ({sys.executable})"
    yield "platform", platform.platform()
    try:
        from ptd_engine import _core

        yield "C++ core", f"loaded, at most {_core.MAX_TREE_NODES} rows a step"
    except Exception as error:
        yield "C++ core", f"not available: {_describe(error)}"
    import torch

    yield "torch", str(torch.__version__)
    yield "built for CUDA", torch.version.cuda or "no: a CPU build"


def _cpu() -> Iterable[Row]:
    info = _cpu_info()
    yield "model", info.get("model name") or platform.processor() or platform.machine()
    yield "cores usable", f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}"
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    yield "memory", f"{pages * size / 2**30:.1f} GiB"
    if flags := set((info.get("flags") or info.get("Features") or "").split()):
        known = _CPU_FLAGS if "flags" in info else _CPU_FLAGS_ARM
        yield "has", " ".join(f for f in known if f in flags) or "none of the sets looked for"
        yield "has not", " ".join(f for f in known if f not in flags) or "-"
    policy = os.environ.get("OMP_WAIT_POLICY")
    yield "OMP_WAIT_POLICY", policy or "not set: idle threads may spin; 'passive' is advised"
    import torch

    yield "torch uses", torch.backends.cpu.get_cpu_capability()
    yield "torch threads", str(torch.get_num_threads())
    from ptd_engine import _core

    isas = _core.cpu_isas()
    yield "own kernels use", _core.cpu_best_isa()
    yield "own kernels could use", " ".join(name for name, reason in isas.items() if not reason)
    for name, reason in isas.items():
        if reason:
            yield f"kernels=cpu:{name}", f"not available: {reason}"
    yield "oneDNN", "yes" if torch.backends.mkldnn.is_available() else "no: plain matrix products"


def _cpu_info() -> dict[str, str]:
    """The first processor's block of /proc/cpuinfo; empty where there is none."""
    try:
        block = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in block.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _gpu() -> Iterable[Row]:
    import torch

    if not torch.cuda.is_available():
        reason = "torch sees no GPU" if torch.version.cuda else "this torch is a CPU build"
        yield "CUDA", f"not available: {reason}"
        return
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        yield (
            f"cuda:{index}",
            f"{found.name}, sm_{found.major}{found.minor}, {found.total_memory / 2**30:.1f} GiB, "
            f"{found.multi_processor_count} multiprocessors",
        )


def _kernels() -> Iterable[Row]:
    import torch

    from ptd_engine.kernels import KernelRequest, preferred_dtype
    from ptd_engine.kernels.registry import BACKENDS, OP_NAMES, select_ops

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = preferred_dtype(device)
    request = KernelRequest(device, dtype, _HEAD_DIM)
    yield "probed for", f"{device.type}, {str(dtype).removeprefix('torch.')}, head_dim {_HEAD_DIM}"
    chosen: dict[str, str] = {}
    try:
        ops = select_ops("auto", device, dtype, _HEAD_DIM)
        chosen = {choice.op: choice.backend for choice in ops.choices}
    except Exception as error:
        yield "kernels=auto", f"fails: {_describe(error)}"
    for backend in BACKENDS:
        try:
            reason = backend.probe(request)
            offered = {} if reason is not None else backend.load(request)
        except Exception as error:
            reason, offered = _describe(error), {}
        if reason is not None:
            yield backend.name, f"not available: {reason}"
            continue
        for op in OP_NAMES:
            state = "available" if op in offered else "not available: this backend has no such op"
            taken = ", taken by auto" if chosen.get(op) == backend.name else ""
            yield f"{backend.name} {op}", state + taken


def _packages() -> Iterable[Row]:
    for requirement in metadata.requires("ptd-engine") or []:
        name, extra = _parse(requirement)
        if name == "ptd-engine":  # an extra that stands for other extras
            continue
        group = f" (optional: {extra})" if extra else ""
        try:
            yield name + group, metadata.version(name)
        except metadata.PackageNotFoundError:
            how = f"pip install 'ptd-engine[{extra}]'" if extra else f"pip install {name}"
            yield name + group, f"not installed: {how}"


def _parse(requirement: str) -> tuple[str, str]:
    """(package, extra or "") of a requirement string."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    extra = re.search(r"""extra\s*==\s*["']([^"']+)["']""", requirement)
    return name.group() if name else requirement, extra.group(1) if extra else ""
