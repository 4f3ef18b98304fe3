"""`kernels --gpu`: tree attention and linears on a GPU, beside what else computes them there.

The most important cases come first; what the time allowed does not reach is listed as left out.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from bench.gpu_attention import AttentionBench, own_attention
from bench.gpu_cases import FULL, TINY, Budget, Grid, aims, compare_attention, compare_linears
from bench.gpu_linears import LABELS, measure_linear
from bench.gpu_timing import Timer, copy_bandwidth
from bench.report import Document, TitledTable, make_table
from ptd_engine.errors import ConfigError, PTDError
from ptd_engine.kernels import WeightFormat, select_ops

BACKENDS = ("triton", "cuda")
PARTS = ("attention", "linears", "others")  # others: attention by other libraries
Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `kernels` that speak of a GPU."""
    group = parser.add_argument_group("on a GPU (the other options but --out do not apply)")
    group.add_argument("--gpu", action="store_true", help="attention and linears on this GPU")
    group.add_argument("--seconds", type=float, default=120.0, help="begin no case after these")
    group.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    group.add_argument(
        "--rehearse", action="store_true", help="with --gpu: tiny shapes, interpreted, on the CPU"
    )


def run(args: argparse.Namespace) -> Document:
    """Measure. Raises ConfigError without a GPU, unless this is a rehearsal."""
    if not (args.rehearse or torch.cuda.is_available()):
        raise ConfigError.for_field(
            "--gpu", "no CUDA device", "a machine with one", "--rehearse runs the same on the CPU."
        )
    device = torch.device("cpu" if args.rehearse else "cuda")
    grid = TINY if args.rehearse else FULL
    copy_gb_s = copy_bandwidth(device)
    repeats = 1 if args.rehearse else 21
    rows, left_out = _measure(device, grid, args.parts, args.seconds, repeats)
    wrong = [r for r in rows if "error" in r]
    uneven = [r for r in rows if r.get("bits_equal") is False or r.get("root_bits_equal") is False]
    timed = [r for r in rows if "us" in r]
    attention = compare_attention([r for r in timed if "heads" in r], copy_gb_s)
    linears = compare_linears([r for r in timed if "matrix" in r], copy_gb_s)
    return Document(
        "kernels_gpu",
        correct=not wrong and not uneven,
        settings={"device": str(device), "dtype": "bfloat16", "seconds": args.seconds},
        results={
            "copy_gb_s": copy_gb_s,
            "attention": attention,
            "linears": linears,
            "aims": aims(attention, linears),
            "mismatches": wrong,
            "left_out": left_out,
        },
        tables=[_attention_table(attention, copy_gb_s), _linear_table(linears, copy_gb_s)],
        notes=[
            *(
                f"DIFFERS from the reference by {w['error']:g}, not timed: {_name(w)}"
                for w in wrong
            ),
            *(f"DEPENDS on the number of rows in its bits: {_name(u)}" for u in uneven),
            *(f"left out, {reason}" for reason in left_out),
        ],
        device=device,
    )


def _measure(
    device: torch.device, grid: Grid, wanted: Sequence[str], seconds: float, repeats: int
) -> tuple[list[Row], list[str]]:
    """Rows that were measured, and what was left out with its reason."""
    found = dict(own_attention(device, BACKENDS))
    missing = [f"{name}: {why}" for name, why in found.items() if isinstance(why, str)]
    timer = Timer(device, repeats)
    own = {name: attend for name, attend in found.items() if not isinstance(attend, str)}
    attention = AttentionBench(timer, device, own)
    ops = {}
    for weight_format in LABELS:
        try:
            ops[weight_format] = _linear_ops(device, weight_format)
        except PTDError as error:
            missing.append(f"triton {LABELS[weight_format]}: {error}")
    parts: dict[str, list[Callable[[], Iterator[Row]]]] = {
        "attention": [partial(attention.own, c) for c in grid.attention()],
        "linears": [partial(measure_linear, c, grid.rows, ops, timer) for c in grid.linears],
        "others": [partial(attention.others, c) for c in grid.attention()],
    }
    jobs = [(part, job) for part in PARTS if part in wanted for job in parts[part]]
    rows, reasons = run_jobs(jobs, Budget(seconds))
    return rows, missing + reasons


def run_jobs(
    jobs: Sequence[tuple[str, Callable[[], Iterator[Row]]]], budget: Budget
) -> tuple[list[Row], list[str]]:
    """Run jobs in their order while there is time.

    Args:
        jobs: (kind, what yields rows); a row with `reason` says why there is no other.
        budget: of all of them.

    Returns:
        The rows, and a line for everything that is missing: without time, or by its reason.
    """
    rows: list[Row] = []
    late: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for kind, job in jobs:
        if budget.spent:
            late[kind] += 1
            continue
        for row in job():
            if "reason" in row:
                reasons[f"{row['kernel']}: {row['reason']}"] += 1
            else:
                rows.append(row)
    return rows, [
        *(f"{reason} ({count} cases)" for reason, count in reasons.items()),
        *(f"no time: {count} cases of {kind}" for kind, count in late.items()),
    ]


def _linear_ops(device: torch.device, weight_format: WeightFormat) -> Any:
    return select_ops("triton", device, torch.bfloat16, 128, weight_format=weight_format)


def _name(row: Row) -> str:
    keys = ("kernel", "heads", "prefix", "model", "matrix", "rows")
    return ", ".join(f"{key} {row[key]}" for key in keys if key in row)


def _number(value: float | None, form: str = ".2f") -> str:
    return "" if value is None else format(value, form)


def _attention_table(rows: Sequence[Row], copy_gb_s: float) -> TitledTable:
    others = sorted({name for r in rows for name in r["to"]})
    cells = [
        (
            *(r["heads"], str(r["prefix"]), str(r["rows"]), r["kernel"], f"{r['us']:.1f}"),
            *(f"{r['gb_s']:.0f}", f"{100 * r['of_copy']:.0f}%", _number(r["to_one_row"])),
            *(_number(r["to"].get(name)) for name in others),
        )
        for r in sorted(rows, key=lambda r: (r["heads"], r["prefix"], r["rows"], r["kernel"]))
    ]
    columns = ("heads", "prefix", "rows", "kernel", "us", "GB/s", "of copy", "x 1 row")
    title = f"tree attention: bf16, copies run at {copy_gb_s:.0f} GB/s, cold L2, medians"
    return make_table(title, (*columns, *(f"x {name}" for name in others)), cells, 4)


def _linear_table(rows: Sequence[Row], copy_gb_s: float) -> TitledTable:
    cells = [
        (
            *(r["model"], f"{r['matrix']} {r['shape'][0]}x{r['shape'][1]}", r["kernel"]),
            *(str(r["rows"]), f"{r['us']:.1f}", f"{r['gb_s']:.0f}"),
            *(f"{100 * r['of_copy']:.0f}%", _number(r["to_cublas"])),
        )
        for r in rows
    ]
    columns = ("model", "matrix", "kernel", "rows", "us", "GB/s", "of copy", "x cuBLAS")
    title = f"linears: bf16 activations, copies run at {copy_gb_s:.0f} GB/s, cold L2, medians"
    return make_table(title, columns, cells, 3)
