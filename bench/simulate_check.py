"""How far off the step model is where steps were measured: on a processor, with its own bandwidth.

The bandwidth is that of the committed document, the arithmetic is measured when this runs; nothing
is fitted to the step times that the prediction is compared with.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from bench.acceptance import read
from bench.common import collector_off
from bench.gpus import Device
from bench.model_shapes import load_shape
from bench.report import Document, make_table
from bench.step_model import StepModel
from ptd_engine.errors import ConfigError
from ptd_engine.kernels import Ops, select_ops
from ptd_engine.model import ModelConfig
from ptd_engine.model.precision import Precision, resolve_precision

DEMO_SHAPE = "smollm2-135m"
_LAUNCH_US = 0.3  # a barrier of the threads, of which an operation has one (docs/log.md)
_ROWS, _REPEATS = 512, 200  # of the product that measures arithmetic: far from the bandwidth
_LONG = 1024  # of the prefix, where a `hybrid` document has a slope for it
_TILE_ROWS = 16
_FEW_ROWS = 16


def validate(names: Sequence[str]) -> Document:
    """Compare each document's steps with the model's.

    Args:
        names: of `step` and `hybrid` documents of the demo model, measured on this kind of CPU.

    Raises:
        ConfigError: other documents.
    """
    config = load_shape(DEMO_SHAPE)
    rates: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    for name in names:
        document = read(name)
        if document.get("benchmark") not in ("step", "hybrid") or not document["correct"]:
            raise ConfigError.for_field("--validate", name, "a correct document of step or hybrid")
        if document["gpu"] is not None or document["settings"]["model"] != "demo":
            raise ConfigError.for_field("--validate", name, "the demo model on a CPU")
        dtype = document["settings"]["dtype"]
        if dtype not in rates:
            rates[dtype] = measured_tflops(config, dtype)
        rows += _compared(name, document, config, rates[dtype])
    errors = [abs(r["error"]) for r in rows]
    in_turn = [abs(r["error_without_overlap"]) for r in rows]
    few = [abs(r["error"]) for r in rows if r["rows"] <= _FEW_ROWS]
    results = {
        "prediction": False,
        "tflops_of_a_thread": rates,
        "steps": rows,
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "median_error_without_overlap": statistics.median(in_turn),
        "worst_error_without_overlap": max(in_turn),
        "median_error_up_to_16_rows": statistics.median(few) if few else None,
    }
    return Document(
        "simulate_check",
        correct=True,
        settings={"shape": DEMO_SHAPE, "documents": list(names), "launch_us": _LAUNCH_US},
        results=results,
        tables=[
            make_table(
                "the step model against measured steps on a CPU",
                (
                    *("document", "prefix", "rows", "measured ms", "predicted ms", "error"),
                    *("without overlap", "error"),
                ),
                [
                    (
                        *(r["document"], str(r["prefix"]), str(r["rows"])),
                        *(f"{r['measured_ms']:.2f}", f"{r['predicted_ms']:.2f}"),
                        f"{100 * r['error']:+.0f}%",
                        f"{r['without_overlap_ms']:.2f}",
                        f"{100 * r['error_without_overlap']:+.0f}%",
                    )
                    for r in rows
                ],
            )
        ],
        device=torch.device("cpu"),
    )


def _compared(
    name: str, document: Mapping[str, Any], config: ModelConfig, tflops: float
) -> Iterator[dict[str, Any]]:
    machine, settings = document["machine"], document["settings"]
    bandwidth = machine["memory_read_best_gb_s"]
    device = Device(
        machine["cpu"],
        "measured",
        memory_gb=machine["memory_gb"],
        bandwidth_gb_s=bandwidth,
        tflops=tflops * settings["threads"],
        link_gb_s=1.0,
        l2_gb_s=math.inf,  # these kernels keep no partial results
        bandwidth_share=1.0,
        flops_share=1.0,
        launch_us=_LAUNCH_US,
        sync_us=0.0,
        tile_rows=_TILE_ROWS,
    )
    weight_bytes = _weight_bytes(config, settings["dtype"])
    model = StepModel(device, config, weight_bytes, config.vocab_size, fused=False)
    added = replace(model, device=replace(device, overlap=0.0))
    for prefix, rows, ms in _measured(document):
        predicted = 1e3 * model.time(rows, prefix).total
        in_turn = 1e3 * added.time(rows, prefix).total
        yield {
            "document": name.rpartition("/")[2],
            "dtype": settings["dtype"],
            "bandwidth_gb_s": bandwidth,
            "prefix": prefix,
            "rows": rows,
            "measured_ms": ms,
            "predicted_ms": predicted,
            "error": predicted / ms - 1,
            "without_overlap_ms": in_turn,
            "error_without_overlap": in_turn / ms - 1,
        }


def _measured(document: Mapping[str, Any]) -> Iterator[tuple[int, int, float]]:
    """(prefix, rows, milliseconds)."""
    results = document["results"]
    if document["benchmark"] == "step":
        yield from ((s["prefix"], s["rows"], s["ms"]) for s in results["steps"])
        return
    times = results["step_times"]
    for prefix in (0, _LONG):
        for rows, seconds, slope in zip(
            times["rows"], times["seconds"], times["seconds_per_token"], strict=True
        ):
            yield prefix, rows, 1e3 * (seconds + prefix * slope)


def _cpu_ops(
    config: ModelConfig, dtype: str, num_threads: int | None = None
) -> tuple[Precision, Ops]:
    cpu = torch.device("cpu")
    precision = resolve_precision(dtype, None, cpu)
    ops = select_ops(
        "cpu",
        cpu,
        precision.dtype,
        config.head_dim,
        weight_format=precision.weight_format,
        num_threads=num_threads,
    )
    return precision, ops


def _weight_bytes(config: ModelConfig, dtype: str) -> int:
    """As the CPU's kernels pack them."""
    from ptd_engine.memory_plan import count_weights

    precision, ops = _cpu_ops(config, dtype)
    return count_weights(config, config, precision, ops).read


def measured_tflops(config: ModelConfig, dtype: str) -> float:
    """10^12 operations/s of one thread in a product with so many rows that arithmetic is its limit:
    the best of many, since a machine with other work gives no thread all of its time.
    """
    precision, ops = _cpu_ops(config, dtype, num_threads=1)
    outputs, inputs = 2 * config.intermediate_size, config.hidden_size
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, inputs, generator=draw).to(precision.dtype)
    x = torch.randn(_ROWS, inputs, generator=draw).to(precision.dtype)
    out = torch.empty(_ROWS, outputs, dtype=precision.dtype)
    packed = ops.pack_linear(weight, None)
    times = []
    with collector_off():
        for _ in range(1 + _REPEATS):
            start = time.perf_counter()
            ops.linear(x, packed, out)
            times.append(time.perf_counter() - start)
    return 2 * _ROWS * outputs * inputs / min(times[1:]) / 1e12
