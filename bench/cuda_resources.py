"""Registers, spills and shared memory of the CUDA C++ kernels, asked of nvcc; no GPU is needed.

    python -m bench.cuda_resources [--json FILE] [--write docs/kernels.md]

Exit status 1 if a kernel spills, or needs more shared memory than a block may have.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

CSRC = Path(__file__).parents[1] / "csrc"
ARCHS = {80: "80", 90: "90a", 100: "100"}
# Bytes of shared memory that one block may have.
SHARED_LIMIT = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
BEGIN, END = "<!-- kernels:cuda -->", "<!-- /kernels:cuda -->"

_DTYPES = {"f": "float32", "6__half": "float16", "13__nv_bfloat16": "bfloat16"}
_ENTRY = re.compile(
    r"Compiling entry function '_Z\w*\d([a-z_]+_kernel)(?:I(\d*[a-z_]\w*?)(?:Li(\d+))?E)?\w*' "
    r"for 'sm_(\d+)a?'\n(?:.*\n)*?"
    r".*?(\d+) bytes spill stores, (\d+) bytes spill loads\n.*?Used (\d+) registers"
)
# Of the launches in csrc/cuda that name their shared memory; attention has functions for it.
_PROBE = """
#include <cstdio>
#include "select_row.cuh"
#include "ptd/cuda/tree_attention.h"
int main() {
  for (int dtype = 0; dtype < 3; ++dtype)
    for (int dim : {64, 80, 96, 128, 256}) {
      const auto bytes = ptd::cuda::attention_shared(ptd::cuda::DType{dtype}, dim);
      std::printf("%d %d %d %d\\n", dtype, dim, bytes.prefix, bytes.tree);
    }
  std::printf("%d\\n", static_cast<int>(sizeof(ptd::cuda::SelectShared)));
}
"""


@dataclass(frozen=True)
class Report:
    """One kernel on one GPU.

    Attributes:
        kernel, dtype, head_dim, arch: which; head_dim 0 where there is none.
        registers: of a thread.
        spilled: bytes that are stored and loaded for want of registers.
        shared: bytes of shared memory of a block, which is asked for at the launch.
    """

    kernel: str
    dtype: str
    head_dim: int
    arch: int
    registers: int
    spilled: int
    shared: int

    @property
    def passes(self) -> bool:
        """Spills nothing, fits."""
        return self.spilled == 0 and self.shared <= SHARED_LIMIT[self.arch]


def find_nvcc() -> str | None:
    """Where setup.py would find it."""
    home = os.environ.get("CUDA_HOME", "")
    places = (os.environ.get("CUDACXX"), home and f"{home}/bin/nvcc", "/usr/local/cuda/bin/nvcc")
    return next(
        (found for place in places if place and (found := shutil.which(place))),
        shutil.which("nvcc"),
    )


def compile_log(nvcc: str, source: Path) -> str:
    """What ptxas says of a source, for all architectures."""
    targets = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in ARCHS.values()]
    include = ("-I", str(CSRC / "include"))
    with tempfile.TemporaryDirectory() as folder:
        # Only the part for the GPU: what is compiled for the host says nothing here.
        flags = ("-std=c++17", "-O3", "-Xptxas", "-v", "-fatbin")
        command = [nvcc, *flags, *include, *targets, source]
        result = subprocess.run(
            [*map(str, command), "-o", f"{folder}/out.fatbin"],
            capture_output=True,
            text=True,
            check=False,
        )
    if result.returncode != 0:
        raise SystemExit(f"{source.name}: {result.stderr}")
    return result.stderr


def shared_bytes(nvcc: str) -> dict[tuple[str, str, int], int]:
    """(kernel, dtype, head_dim) -> bytes, of the kernels that ask for more than a few."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "probe.cu"), Path(folder, "probe")
        source.write_text(_PROBE, encoding="utf-8")
        # The kernels themselves are not linked: only sizes are asked for.
        layouts = Path(folder, "layouts.cu")
        text = (CSRC / "cuda/tree_attention.cu").read_text(encoding="utf-8")
        layouts.write_text(text[: text.index("cudaError_t tree_attention(")] + "}\n", "utf-8")
        include = (f"-I{CSRC / 'include'}", f"-I{CSRC / 'cuda'}")
        command = [nvcc, "-std=c++17", "-arch=sm_80", *include, source, layouts, "-o", program]
        subprocess.run([str(part) for part in command], check=True)
        *rows, select = subprocess.check_output([program], text=True).splitlines()
    found = {}
    dtypes = ("float32", "float16", "bfloat16")
    for row in rows:
        dtype, dim, prefix, tree = map(int, row.split())
        found["attention_prefix_kernel", dtypes[dtype], dim] = prefix
        found["attention_tree_kernel", dtypes[dtype], dim] = tree
    for name in dtypes:
        found["select_kernel", name, 0] = int(select)
    return found


def parse(log: str, shared: dict[tuple[str, str, int], int]) -> list[Report]:
    """The reports in what ptxas says."""
    reports = []
    for kernel, dtype, dim, arch, stores, loads, registers in _ENTRY.findall(log):
        key = (kernel, _DTYPES.get(dtype, "any"), int(dim or 0))
        spilled = int(stores) + int(loads)
        reports.append(Report(*key, int(arch), int(registers), spilled, shared.get(key, 0)))
    return reports


def measure(nvcc: str, jobs: int = 2) -> list[Report]:
    """Reports of all kernels for all architectures, in order."""
    sources = sorted((CSRC / "cuda").glob("*.cu"))
    shared = shared_bytes(nvcc)
    with ThreadPoolExecutor(jobs) as pool:
        logs = list(pool.map(lambda source: compile_log(nvcc, source), sources))
    reports = [report for log in logs for report in parse(log, shared)]
    return sorted(reports, key=lambda r: (r.kernel, r.dtype, r.head_dim, r.arch))


def table(reports: Iterable[Report]) -> str:
    """A line for each kernel: registers on the three architectures, spills, shared memory."""
    lines = [
        "| kernel | dtype | head_dim | registers sm_80 / 90a / 100 | spilled | shared, KB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rows: dict[tuple[str, str, int], list[Report]] = {}
    for report in reports:
        rows.setdefault((report.kernel, report.dtype, report.head_dim), []).append(report)
    for (kernel, dtype, dim), found in rows.items():
        registers = " / ".join(str(report.registers) for report in found)
        spilled = sum(report.spilled for report in found)
        shared = f"{found[0].shared / 1024:.1f}" if found[0].shared else ""
        name = kernel.removesuffix("_kernel")
        lines.append(f"| {name} | {dtype} | {dim or ''} | {registers} | {spilled} | {shared} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description="resources of the CUDA kernels")
    parser.add_argument("--json", type=Path, help="write the reports here")
    parser.add_argument("--write", type=Path, help="renew the table of this page")
    options = parser.parse_args(arguments)
    nvcc = find_nvcc()
    if nvcc is None:
        raise SystemExit("nvcc was not found: set CUDACXX or CUDA_HOME")
    reports = measure(nvcc, os.cpu_count() or 2)
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in reports], indent=1) + "\n")
    if options.write:
        page = options.write.read_text(encoding="utf-8")
        head, _, rest = page.partition(BEGIN)
        tail = rest.partition(END)[2]
        options.write.write_text(f"{head}{BEGIN}\n{table(reports)}\n{END}{tail}", encoding="utf-8")
    print(table(reports))
    failed = [report for report in reports if not report.passes]
    for report in failed:
        print(f"does not pass: {report}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
