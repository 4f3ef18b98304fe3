"""Would a loop that stays on the device be faster? Predicted from the step model.

Candidate-only drafters (token recycling, prompt lookup) could walk their tables and write the next
plan on the device, and the host would look at the output every few steps. It saves plan, commit and
waiting; it pays for kernels that walk, and for steps behind the end of an output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bench.acceptance import Drafting, HostTimes
from bench.step_model import StepModel
from ptd_engine.config import MAX_TREE_NODES
from ptd_engine.runner.buckets import bucket_of, default_node_buckets

DRAFTERS = ("token-recycling", "prompt-lookup")
BURSTS = (2, 4, 8, 16)
# Assumed: verify, learn and propose as three kernels of one block, whose chains of dependent reads
# are about one a level of the tree.
WALK_LAUNCHES, WALK_READS, READ_US = 3, 10, 0.8
OUTPUT_TOKENS = 128
BAR = 0.03  # worth building above it


def judge(
    model: StepModel, draftings: Sequence[Drafting], host: HostTimes, prefix: int
) -> dict[str, Any]:
    """Predicted tokens a second of both loops, and the best that the host's loop has to offer.

    Returns:
        rows by drafter and burst with `gain` (over the same drafter driven by the host) and
        `gain_over_best` (over the fastest drafter driven by the host); whether to build it.
    """
    best = max(draftings, key=lambda d: by_host(model, d, host, prefix))
    fastest = by_host(model, best, host, prefix)
    rows: list[dict[str, Any]] = []
    for drafting in draftings:
        if drafting.drafter not in DRAFTERS:
            continue
        synced = by_host(model, drafting, host, prefix)
        for burst in BURSTS:
            staying = resident(model, drafting, host, prefix, burst)
            rows.append(
                {
                    "drafter": drafting.drafter,
                    "steps_without_host": burst,
                    "host_tokens_per_second": synced,
                    "resident_tokens_per_second": staying,
                    "gain": staying / synced - 1,
                    "gain_over_best": staying / fastest - 1,
                }
            )
    most = max((float(r["gain_over_best"]) for r in rows), default=0.0)
    return {
        "prefix": prefix,
        "walk_us": walk_us(model),
        "output_tokens": OUTPUT_TOKENS,
        "best_by_host": {
            "drafter": best.drafter,
            "budget": best.budget,
            "tokens_per_second": fastest,
            "host_us": host.us(best.drafter, best.rows) + model.device.sync_us,
        },
        "rows": rows,
        "bar": BAR,
        "build": most > BAR,
    }


def walk_us(model: StepModel) -> float:
    """Microseconds that the device takes to verify, learn and propose."""
    return WALK_LAUNCHES * model.device.launch_us + WALK_READS * READ_US


def by_host(model: StepModel, drafting: Drafting, host: HostTimes, prefix: int) -> float:
    """Tokens a second with one wait a step."""
    host_us = host.us(drafting.drafter, drafting.rows)
    return drafting.tokens / model.time(padded(drafting), prefix, host_us).total


def resident(
    model: StepModel, drafting: Drafting, host: HostTimes, prefix: int, burst: int
) -> float:
    """Tokens a second with a wait every `burst` steps; the last burst runs past the end."""
    step = model.time(padded(drafting), prefix, -model.device.sync_us).total
    step += walk_us(model) * 1e-6 + model.device.sync_us * 1e-6 / burst
    steps = OUTPUT_TOKENS / drafting.tokens
    return OUTPUT_TOKENS / (step * (steps + (burst - 1) / 2))


def padded(drafting: Drafting) -> int:
    """The node bucket of the mean step."""
    rows = math.ceil(drafting.rows - 0.005)  # a mean over thousands of steps of one size
    return bucket_of(default_node_buckets(MAX_TREE_NODES), rows)
