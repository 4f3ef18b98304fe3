"""Ahead-of-time check: compile every kernel for every GPU, without one.

    python -m ptd_engine.triton_kernels.aot [--all] [--json FILE] [--write docs/kernels.md]

Each variant is compiled for its compute capabilities by child processes without TRITON_INTERPRET
(Triton decides at import between compiling and interpreting); ptxas then tells the registers and
what it had to spill. A variant passes when nothing is spilled and its shared memory fits the GPU.
Exit status 1 if one does not.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .variants import Variant

MODULES = (
    "attention_variants",
    "add_rms_norm",
    "embed",
    "kv_commit",
    "linear",
    "linear_gate_up",
    "linear_qkv",
    "rope_kv_write",
    "select",
    "select_draw",
    "silu_mul",
)
# Bytes of shared memory that one block may have.
SHARED_LIMIT = {80: 163 << 10, 86: 99 << 10, 90: 227 << 10, 100: 227 << 10}
BEGIN, END = "<!-- kernels:aot -->", "<!-- /kernels:aot -->"


@dataclass(frozen=True)
class Report:
    """What became of one variant on one GPU.

    Attributes:
        kernel, variant, arch: which.
        registers: of a thread.
        spilled: bytes that ptxas stores and loads for want of registers.
        shared: bytes of shared memory.
        limit: bytes that there may be.
        layouts: the matrix instruction layouts in use, which fix the order of sums.
        error: why it did not compile, or "".
    """

    kernel: str
    variant: str
    arch: int
    registers: int = 0
    spilled: int = 0
    shared: int = 0
    limit: int = 0
    layouts: tuple[str, ...] = ()
    error: str = ""

    @property
    def passes(self) -> bool:
        """Compiles, spills nothing, fits."""
        return not self.error and self.spilled == 0 and self.shared <= self.limit


def registered(quick: bool) -> list[tuple[Variant, int]]:
    """Every variant with each of its compute capabilities; with `quick`, of the quick ones."""
    found = []
    for name in MODULES:
        module = importlib.import_module(f".{name}", __package__)
        found += [(v, arch) for v in module.variants() for arch in v.archs if v.quick or not quick]
    return found


def compile_variant(variant: Variant, arch: int) -> Report:
    """Compile one variant. Not to be called where kernels are interpreted."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = variant.kernel
    base = Report(kernel.__name__, variant.name, arch, limit=SHARED_LIMIT[arch])
    names = kernel.arg_names
    source = ASTSource(
        kernel,
        signature={x: variant.signature.get(x, "constexpr") for x in names},
        constexprs={(names.index(x),): value for x, value in variant.constants.items()},
        attrs={(names.index(x),): [["tt.divisibility", 16]] for x in variant.aligned},
    )
    options = {
        "num_warps": variant.num_warps,
        "num_stages": variant.num_stages,
        "enable_fp_fusion": False,
    }
    try:
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
        registers, spilled = _resources(compiled.asm["ptx"], arch)
    except Exception as error:  # whatever the compiler raises is this variant's result
        lines = [line for line in str(error).splitlines() if line.strip()]
        return Report(
            **{**asdict(base), "error": f"{type(error).__name__}: {' '.join(lines[-3:])}"}
        )
    layouts = re.findall(r"#ttg\.nvidia_mma<\{([^}]*)\}>", compiled.asm["ttgir"])
    return Report(
        base.kernel,
        base.variant,
        arch,
        registers,
        spilled,
        compiled.metadata.shared,
        base.limit,
        tuple(sorted(set(layouts))),
    )


def _resources(ptx: str, arch: int) -> tuple[int, int]:
    """Registers, and spilled bytes (stores and loads), from ptxas."""
    from triton.backends.nvidia.compiler import get_ptxas

    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    assert target is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx, encoding="utf-8")
        flags = ["-v", "--fmad=false", f"--gpu-name={target[1]}", "-o", f"{folder}/kernel.cubin"]
        result = subprocess.run(
            [get_ptxas(arch).path, *flags, str(path)], capture_output=True, text=True, check=True
        )
    registers = re.search(r"Used (\d+) registers", result.stderr)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", result.stderr)
    if registers is None or not spills:
        raise ValueError(f"ptxas said neither registers nor spills: {result.stderr}")
    return int(registers[1]), sum(int(x) for x in spills)


def check(quick: bool = True, jobs: int = 1, only: str = "") -> list[Report]:
    """Compile in `jobs` processes what is registered, in a stable order.

    Args:
        quick: only the variants that every run of the tests compiles.
        jobs: processes.
        only: a regular expression that "kernel variant arch" must contain.
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    scope = ["--quick"] if quick else []
    command = [sys.executable, "-m", __name__ if __name__ != "__main__" else __spec__.name]
    workers = [
        subprocess.Popen(
            [*command, *scope, "--only", only, "--worker", f"{i}/{jobs}"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(jobs)
    ]
    outputs = [worker.communicate()[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        raise RuntimeError("a compiling process failed; its message is above")
    reports = [
        Report(**{**fields, "layouts": tuple(fields["layouts"])})
        for output in outputs
        for fields in map(json.loads, output.splitlines())
    ]
    return sorted(reports, key=lambda x: (x.kernel, x.variant, x.arch))


def _work(quick: bool, only: str, share: str) -> None:
    """Be one of the processes: print a JSON object a variant."""
    first, step = map(int, share.split("/"))
    for variant, arch in _chosen(quick, only)[first::step]:
        sys.stdout.write(json.dumps(asdict(compile_variant(variant, arch))) + "\n")
        sys.stdout.flush()


def _chosen(quick: bool, only: str) -> list[tuple[Variant, int]]:
    return [
        (v, arch)
        for v, arch in registered(quick)
        if re.search(only, f"{v.kernel.__name__} {v.name} {arch}")
    ]


def table(reports: Iterable[Report]) -> str:
    """Markdown: a line for each kernel and variant, a column for each GPU."""
    rows: dict[tuple[str, str], dict[int, Report]] = {}
    archs: set[int] = set()
    for report in reports:
        rows.setdefault((report.kernel, report.variant), {})[report.arch] = report
        archs.add(report.arch)
    columns = sorted(archs)
    lines = ["| kernel | variant | " + " | ".join(f"sm_{arch}" for arch in columns) + " |"]
    lines.append("|---|---|" + "---|" * len(columns))
    for (kernel, variant), by_arch in rows.items():
        cells = [_cell(by_arch.get(arch)) for arch in columns]
        lines.append(f"| `{kernel}` | {variant} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(report: Report | None) -> str:
    if report is None:
        return ""
    if report.error:
        return "does not compile"
    spilled = f", {report.spilled} B spilled" if report.spilled else ""
    return f"{report.registers} regs, {report.shared / 1024:.0f} KB{spilled}"


def write_table(path: Path, text: str) -> None:
    """Put the table between the markers of a document."""
    document = path.read_text(encoding="utf-8")
    if BEGIN not in document or END not in document:
        raise ValueError(f"{path} has no {BEGIN} and {END}")
    head, rest = document.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    path.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("--all", action="store_true", help="every variant, not only the quick ones")
    scope.add_argument("--quick", action="store_true", help="only the quick ones (the default)")
    parser.add_argument("--only", default="", help="regular expression on 'kernel variant arch'")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="write the reports here")
    parser.add_argument("--write", type=Path, help="document whose table is to be renewed")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        _work(options.quick, options.only, options.worker)
        return 0
    reports = check(not options.all, options.jobs, options.only)
    text = table(reports)
    sys.stdout.write(text + "\n")
    failed = [x for x in reports if not x.passes]
    for x in failed:
        why = x.error or f"{x.spilled} bytes spilled, {x.shared} of {x.limit} bytes shared"
        sys.stdout.write(f"FAILED {x.kernel} {x.variant} sm_{x.arch}: {why}\n")
    sys.stdout.write(f"{len(reports)} variants, {len(failed)} failed\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(x) for x in reports], indent=1) + "\n")
    if options.write:
        write_table(options.write, text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
