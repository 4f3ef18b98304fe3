"""The command line: one subcommand a benchmark.

Exit status: 0 measured, 1 a result was wrong (no time is printed for it), 2 a bad argument.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# Read when torch is imported: spinning OpenMP threads ruin every time as soon as the machine has
# other work. A setting of the caller's own wins, and the document names it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from bench import (
    bookkeeping,
    compare,
    decode,
    gpu_engine,
    hybrid,
    kernels,
    paper,
    quality,
    serve,
    simulate,
    simulate_decode,
    step,
)
from bench.report import Document, emit
from ptd_engine.errors import PTDError

_BENCHMARKS = {
    "decode": decode,
    "step": step,
    "kernels": kernels,
    "bookkeeping": bookkeeping,
    "compare": compare,
    "quality": quality,
    "paper": paper,
    "hybrid": hybrid,
    "serve": serve,
    "engine": gpu_engine,
    "simulate": simulate,
    "simulate-decode": simulate_decode,
}
_WRITES_A_FOLDER = "paper"  # its --out is a folder, which gets the document as report.json


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="benchmark", required=True)
    for name, module in _BENCHMARKS.items():
        summary = (module.__doc__ or "").partition("\n")[0]
        command = commands.add_parser(name, help=summary, description=module.__doc__)
        module.add_arguments(command)
        if name == _WRITES_A_FOLDER:
            command.add_argument("--out", type=Path, metavar="DIR", help="of the runs and report")
        else:
            command.add_argument(
                "--out", type=Path, metavar="FILE", help="write the JSON document here as well"
            )
    args = parser.parse_args(argv)
    try:
        document: Document = _BENCHMARKS[args.benchmark].run(args)
        in_folder = args.benchmark == _WRITES_A_FOLDER
        emit(document, args.out / "report.json" if in_folder else args.out)
    except PTDError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if document.correct else 1


if __name__ == "__main__":
    sys.exit(main())
