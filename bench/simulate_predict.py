"""What `simulate` computes for one model on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import torch

from bench.acceptance import PLAIN, Drafting, HostTimes
from bench.bucket_choice import choose, choose_kv, counts_of
from bench.common import ratio
from bench.gpus import Device
from bench.resident import judge, padded
from bench.step_model import StepModel
from ptd_engine.errors import ConfigError
from ptd_engine.memory_plan import count_weights
from ptd_engine.model import ModelConfig
from ptd_engine.model.precision import resolve_precision
from ptd_engine.tensor_parallel import check_ranks
from ptd_engine.tensor_parallel.partition import head_rows

KV_LENGTHS = (8192, 32768)


def replaced(device: Device, settings: Sequence[str]) -> Device:
    """The device with fields of the command line.

    Raises:
        ConfigError: an unknown field, or no number above 0.
    """
    changed: dict[str, float] = {}
    for setting in settings:
        field, _, written = setting.partition("=")
        try:
            value = float(written)
        except ValueError:
            value = 0.0
        if field not in numbers() or not 0 < value < 1e12:
            raise ConfigError.for_field(
                "--set", setting, f"FIELD=NUMBER, above 0, with {', '.join(numbers())}"
            )
        changed[field] = int(value) if field == "tile_rows" else value
    return replace(device, **changed)  # type: ignore[arg-type]


def numbers() -> list[str]:
    """Fields of a device that --set may replace."""
    return [f.name for f in fields(Device) if f.name not in ("name", "source")]


def step_model(
    device: Device, whole: ModelConfig, dtype: str, ranks: int, *, graphs: bool
) -> StepModel:
    """The step of a model on one rank's device.

    Raises:
        ConfigError: a model that cannot be cut into as many parts.
    """
    check_ranks(whole, ranks)
    config = replace(
        whole,
        num_heads=whole.num_heads // ranks,
        num_kv_heads=whole.num_kv_heads // ranks,
        intermediate_size=whole.intermediate_size // ranks,
    )
    precision = resolve_precision(dtype, None, torch.device("cuda"))
    return StepModel(
        device,
        config,
        count_weights(whole, config, precision, None, ranks).read,
        len(head_rows(whole.vocab_size, ranks - 1, ranks)),
        ranks=ranks,
        graphs=graphs,
        fused=ranks == 1,
    )


def predict(
    model: StepModel,
    draftings: Sequence[Drafting],
    host: HostTimes,
    prefixes: Sequence[int],
    row_counts: Sequence[int],
) -> dict[str, Any]:
    """Step times, tokens a second of all drafters, buckets, and the loop without the host.

    Args:
        prefixes: committed tokens; those whose cache leaves no room for the weights are named only.
        row_counts: of the curve of step times.
    """
    plain_us = host.us(PLAIN, 1)
    capacity = model.device.memory_gb * 1e9
    curve, drafted = [], []
    too_long = [p for p in prefixes if model.weight_bytes + model.kv_bytes(p) > capacity]
    for prefix in [p for p in prefixes if p not in too_long]:
        one = model.time(1, prefix, plain_us)
        for rows in sorted({1, *row_counts}):
            step = model.time(rows, prefix, plain_us)
            curve.append(
                {
                    "prefix": prefix,
                    "rows": rows,
                    "ms": 1e3 * step.total,
                    "to_one_row": step.total / one.total,
                    "parts_us": {part: 1e6 * s for part, s in asdict(step).items()},
                }
            )
        moved = model.weight_bytes + model.kv_bytes(prefix)
        share = moved / one.total / (model.device.bandwidth_gb_s * 1e9)
        drafted.append(
            {
                "prefix": prefix,
                "drafter": PLAIN,
                "budget": None,
                "rows": 1.0,
                "bucket": 1,
                "tokens_a_step": 1.0,
                "host_us": plain_us,
                "step_ms": 1e3 * one.total,
                "tokens_per_second": 1 / one.total,
                "speedup": 1.0,
                "of_bandwidth": share,
            }
        )
        for d in draftings:
            host_us, bucket = host.us(d.drafter, d.rows), padded(d)
            seconds = model.time(bucket, prefix, host_us).total
            drafted.append(
                {
                    "prefix": prefix,
                    "drafter": d.drafter,
                    "budget": d.budget,
                    "rows": d.rows,
                    "bucket": bucket,
                    "tokens_a_step": d.tokens,
                    "host_us": host_us,
                    "step_ms": 1e3 * seconds,
                    "tokens_per_second": d.tokens / seconds,
                    "speedup": ratio(d.tokens * one.total, seconds),
                    "source": d.source,
                }
            )
    return {
        "prediction": True,
        "device": model.device.name,
        "weight_bytes": model.weight_bytes,
        "kv_bytes_per_token": model.kv_bytes(1),
        "launches": model.launches,
        "graphs": model.graphs,
        "ranks": model.ranks,
        "curve": curve,
        "drafters": drafted,
        "beyond_memory": too_long,
        "buckets": choose(
            counts_of(),
            lambda rows: model.time(rows, prefixes[0]).total,
            label=f"predicted for {model.device.name} behind {prefixes[0]} tokens",
        ),
        "kv_buckets": [choose_kv(model, length) for length in KV_LENGTHS],
        "resident": judge(model, draftings, host, prefixes[0]),
    }
