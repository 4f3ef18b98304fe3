"""Every operation by itself: operation x backend x shape, time, GB/s, share of the bandwidth.

A backend's result is compared with the torch reference in float32 first. It may be twice as far
from it as torch in the same dtype is, and some roundings of float32; what is farther gets no time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bench import gpu_kernels
from bench.common import collector_off, integers, positive, ratio
from bench.environment import read_bandwidth
from bench.kernel_cases import head_logits, make_cases
from bench.kernel_types import SHAPES, Case, ModelShape, Prepared
from bench.report import Document, TitledTable, make_table
from ptd_engine import _core
from ptd_engine.errors import ConfigError
from ptd_engine.kernels import Ops, select_ops
from ptd_engine.kernels.registry import FORWARD_OPS
from ptd_engine.testing.compare import max_abs_diff

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SECONDS = 1.0  # a case is timed for no longer, but three times at least
_FEWEST = 3
_BATCH = 16  # calls in one sample of a case that moves less than
_SHORT_BYTES = 2**22
# Of the largest value, in float32: another order of summation, another exponential. It decides
# where the timed dtype is the reference's own.
_ROUNDINGS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--dtype", choices=_DTYPES, default="bfloat16")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["demo", "8b"])
    parser.add_argument("--backends", nargs="+", metavar="NAME", help="default: all available")
    parser.add_argument("--ops", nargs="+", metavar="OP", help="default: all that are timed")
    parser.add_argument("--rows", type=integers, default=[1, 16, 64], metavar="N,...")
    parser.add_argument("--prefix", type=positive, default=512, metavar="L", help="cached tokens")
    parser.add_argument("--repeats", type=positive, default=21, metavar="R")
    parser.add_argument("--threads", type=positive, help="of the CPU kernels; default: torch's")
    gpu_kernels.add_arguments(parser)


def run(args: argparse.Namespace) -> Document:
    """Measure. Raises PTDError for backends and operations that are not there."""
    if args.gpu:
        return gpu_kernels.run(args)
    dtype = _DTYPES[args.dtype]
    backends = args.backends or available_backends()
    bandwidth = read_bandwidth(torch.device("cpu"))
    results: list[dict[str, Any]] = []
    wrong: list[dict[str, Any]] = []
    known = {case.op for case in make_cases(SHAPES["tiny"], 1, 1, dtype)}
    if not known.issuperset(args.ops or ()):
        raise ConfigError.for_field("--ops", args.ops, ", ".join(sorted(known)))
    for shape in (SHAPES[name] for name in args.shapes):
        ops = {name: _ops(name, dtype, shape, args.threads) for name in backends}
        for rows in args.rows:
            for case in make_cases(shape, rows, args.prefix, dtype):
                repeated = case.op == "kv_commit" and rows != args.rows[0]  # takes no rows
                if not repeated and case.op in (args.ops or known):
                    for row in _measure(case, shape, ops, dtype, args.repeats):
                        (wrong if "error" in row else results).append(row)
    for row in results:
        row["of_read"] = ratio(row["gb_s"], bandwidth.best_gb_s)
    settings = {
        "dtype": args.dtype,
        "shapes": args.shapes,
        "backends": backends,
        "rows": args.rows,
        "prefix": args.prefix,
        "repeats": args.repeats,
        "threads": args.threads or torch.get_num_threads(),
    }
    return Document(
        "kernels",
        correct=not wrong,
        settings=settings,
        results={"read_gb_s": bandwidth.best_gb_s, "kernels": results, "mismatches": wrong},
        tables=[_table(settings, results, bandwidth.best_gb_s)],
        notes=[
            f"DIFFERS from the reference by {w['error']:g}: {w['backend']}, {w['op']} "
            f"({w['shape']}: {w['detail']}, {w['rows']} rows): not timed"
            for w in wrong
        ],
        bandwidth=bandwidth,
    )


def available_backends() -> list[str]:
    """torch, the CPU kernels, and each instruction set that this processor has."""
    isas = [f"cpu:{isa}" for isa, reason in _core.cpu_isas().items() if not reason]
    return ["torch", "cpu", *isas]


def _measure(
    case: Case, shape: ModelShape, ops: Mapping[str, Ops], dtype: torch.dtype, repeats: int
) -> Iterator[dict[str, Any]]:
    """A row a backend: its time, or how wrong it is."""
    judge = _Judge(case, shape, dtype)
    for name, own in ops.items():
        row: dict[str, Any] = {"op": case.op, "shape": shape.name, "detail": case.detail}
        row |= {"rows": case.rows, "backend": name}
        prepared = case.prepare(own, dtype)
        prepared.runs[0]()
        error = judge.error(prepared.outputs())
        if error is not None:
            yield row | {"error": error}
            continue
        times = _time(case, prepared, own, repeats)
        ms = statistics.median(times)
        row |= {"ms": ms, "ms_min": min(times), "bytes": case.nbytes}
        yield row | {"gb_s": ratio(case.nbytes, ms * 1e6)}


class _Judge:
    """Tells how wrong a result is, if it is.

    Both references are computed once a case: by torch in float32, and by torch in the dtype.
    """

    def __init__(self, case: Case, shape: ModelShape, dtype: torch.dtype) -> None:
        self._chooses = case.chooses
        wide = _ops("torch", torch.float32, shape, None)
        same = _ops("torch", dtype, shape, None)
        if case.chooses:
            self._reference = head_logits(shape, case.rows, dtype, wide, torch.float32)
            self._same = head_logits(shape, case.rows, dtype, same, dtype)
        else:
            self._reference = _once(case, wide, torch.float32)
            self._same = _once(case, same, dtype)

    def error(self, out: Tensor) -> float | None:
        """None where `out` is right, else its largest distance from the reference.

        Of a chosen id it is by how much its logit is below the largest.
        """
        noise = _ROUNDINGS * torch.finfo(torch.float32).eps * float(self._reference.abs().max())
        allowed = 2 * max_abs_diff(self._same, self._reference) + noise
        if not self._chooses:
            error = max_abs_diff(out, self._reference)
            return None if error <= allowed else error
        chosen = self._reference.gather(1, out[:, :1].long().clamp(min=0))
        missed = float((self._reference.max(dim=1, keepdim=True).values - chosen).max())
        return None if missed <= allowed and bool((out >= 0).all()) else missed


def _once(case: Case, ops: Ops, dtype: torch.dtype) -> Tensor:
    prepared = case.prepare(ops, dtype)
    prepared.runs[0]()
    return prepared.outputs().clone()


def _ops(name: str, dtype: torch.dtype, shape: ModelShape, threads: int | None) -> Ops:
    return select_ops(
        name,
        dtype=dtype,
        head_dim=shape.head_dim,
        num_threads=threads,
        query_group=shape.q_heads // shape.kv_heads,
        kv_heads=shape.kv_heads,
    )


def _time(case: Case, prepared: Prepared, ops: Ops, repeats: int) -> list[float]:
    """Milliseconds a call: means over one call a copy of the inputs, many where they are short.

    As in a step, what a backend can record is recorded and replayed as one.
    """
    calls = list(prepared.runs)
    if case.nbytes < _SHORT_BYTES:
        calls *= -(-_BATCH // len(calls))

    def together() -> None:
        for call in calls:
            call()

    recordable = ops.record is not None and case.op in FORWARD_OPS
    sample = ops.record(together) if recordable and ops.record is not None else together
    sample()  # warm-up
    times: list[float] = []
    begin = time.perf_counter()
    with collector_off():
        while len(times) < repeats:
            if len(times) >= _FEWEST and time.perf_counter() - begin > _SECONDS:
                break
            start = time.perf_counter()
            sample()
            times.append(1e3 * (time.perf_counter() - start) / len(calls))
    return times


def _table(
    settings: dict[str, Any], results: Sequence[dict[str, Any]], read_gb_s: float
) -> TitledTable:
    rows = [
        (
            *(r["op"], r["shape"], r["detail"], r["backend"], str(r["rows"])),
            *(f"{r['ms']:.4f}", f"{r['gb_s']:.2f}", f"{100 * r['of_read']:.0f}%"),
        )
        for r in results
    ]
    title = (
        f"kernels: {settings['dtype']}, {settings['threads']} threads, {settings['prefix']} cached "
        f"tokens, memory is read at {read_gb_s:.1f} GB/s, median of at most {settings['repeats']}"
    )
    columns = ("op", "shape", "", "backend", "rows", "ms", "GB/s", "of the bandwidth")
    return make_table(title, columns, rows, text_columns=4)
