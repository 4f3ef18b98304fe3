"""The whole engine on a GPU: exactness and speed of drafting, and what steps of large models take.

In order: drafted output against plain output with and without graphs, tokens a second of plain and
drafted decoding and of transformers, all of the demo model; then step times of large shapes with
random weights. What the time does not reach is listed as left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from bench.environment import gpu
from bench.gpu_cases import Budget
from bench.gpu_demo import DemoBench, find_demo
from bench.gpu_steps import StepBench
from bench.gpu_timing import copy_bandwidth
from bench.model_shapes import SHAPES
from bench.report import Document, make_table
from ptd_engine.errors import ConfigError, PTDError

_PREFIXES, _ROWS = (512, 2048, 8192, 32768), (1, 8, 16, 32, 64, 128)
_TINY_PREFIXES, _TINY_ROWS = (20, 40), (1, 8)
_LARGE = ("llama-3.1-8b", "qwen2.5-7b")
_TINY = {
    **SHAPES["smollm2-135m"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
}
Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--seconds", type=float, default=90.0, help="begin nothing after these")
    parser.add_argument("--rehearse", action="store_true", help="tiny shapes, on the CPU")
    parser.add_argument(
        "--demo", type=Path, metavar="FILE", help="the demo model's file, if not where it is kept"
    )


def run(args: argparse.Namespace) -> Document:
    """Measure. Raises ConfigError without a GPU, unless this is a rehearsal."""
    if not (args.rehearse or torch.cuda.is_available()):
        raise ConfigError.for_field(
            "engine", "no CUDA device", "a machine with one", "--rehearse runs the same on the CPU."
        )
    device = torch.device("cpu" if args.rehearse else "cuda")
    copy_gb_s = copy_bandwidth(device)
    budget = Budget(args.seconds)
    found: dict[str, list[Row]] = {"verify": [], "decode": [], "steps": [], "launches": []}
    left_out: list[str] = []
    for part, name, job in _jobs(args, device, budget):
        if budget.spent:
            left_out.append(f"no time: {name}")
            continue
        try:
            found[part] += job()
        except (PTDError, ImportError, RuntimeError, OSError) as error:
            first = (str(error).splitlines() or [""])[0]
            left_out.append(f"{name}: {type(error).__name__}: {first}"[:300])
    for row in found["steps"]:
        row["gb_s"] = row["bytes"] / row["ms"] / 1e6
        row["of_copy"] = row["gb_s"] / copy_gb_s
    wrong = [r for r in found["verify"] if not r["identical"]]
    wrong += [r for r in found["steps"] if not r["root_equal"]]
    return Document(
        "engine_gpu",
        correct=not wrong,
        settings={"device": str(device), "rehearsal": args.rehearse, "seconds": args.seconds},
        results={
            "copy_gb_s": copy_gb_s,
            **found,
            "aims": aims(found, None if args.rehearse else gpu(device)),
            "left_out": left_out,
        },
        tables=[
            make_table(
                "step times, random weights",
                ("model", "prefix", "rows", "ms", "x 1 row", "GB/s", "of copy", "launch us"),
                [
                    (
                        *(r["model"], str(r["prefix"]), str(r["rows"]), f"{r['ms']:.3f}"),
                        *(f"{r['to_one_row']:.2f}", f"{r['gb_s']:.0f}"),
                        *(f"{100 * r['of_copy']:.0f}%", f"{r['launch_us']:.0f}"),
                    )
                    for r in found["steps"]
                ],
            ),
            make_table(
                "demo model, greedy",
                ("engine", "graphs", "tokens/s", "tokens a step", "plan + commit us"),
                [
                    (
                        *(r["engine"], r["graphs"], f"{r['tokens_per_second']:.0f}"),
                        *(f"{r['tokens_a_step']:.2f}", f"{r['host_us']:.0f}"),
                    )
                    for r in found["decode"]
                ],
            ),
        ],
        notes=[*(f"DIFFERS: {r}" for r in wrong), *(f"left out, {why}" for why in left_out)],
        device=device,
    )


def _jobs(
    args: argparse.Namespace, device: torch.device, budget: Budget
) -> Iterator[tuple[str, str, Callable[[], list[Row]]]]:
    """(part, name, what measures), the most important first; models are made one at a time."""
    demo: DemoBench | None = None

    def of_demo(method: str) -> Callable[[], list[Row]]:
        def job() -> list[Row]:
            nonlocal demo
            if demo is None:
                demo = DemoBench(find_demo(args.demo, _TINY if args.rehearse else None), device)
            rows: list[Row] = getattr(demo, method)()
            return rows

        return job

    yield "verify", "drafted against plain output", of_demo("verify")
    yield "decode", "decoding of the demo model", of_demo("decode")
    shapes: Mapping[str, Mapping[str, Any]] = (
        {"tiny": _TINY} if args.rehearse else {name: SHAPES[name] for name in _LARGE}
    )
    prefixes = _TINY_PREFIXES if args.rehearse else _PREFIXES
    rows = _TINY_ROWS if args.rehearse else _ROWS
    for name, config in shapes.items():
        steps = StepBench(name, config, device, max(prefixes), max(rows))
        for prefix in prefixes:

            def job(bench: StepBench = steps, prefix: int = prefix) -> list[Row]:
                return list(bench.steps(prefix, rows))

            yield "steps", f"steps of {name} behind {prefix}", job
        yield "launches", f"launches of {name}", steps.launches
        steps.close()
    yield "decode", "transformers", of_demo("transformers")


def aims(found: Mapping[str, list[Row]], device: Mapping[str, Any] | None) -> dict[str, Any]:
    """What was aimed at on an H200 with an 8B model, and what came of it (None: not measured)."""
    ours = [r for r in found["steps"] if r["model"] == _LARGE[0] and r["prefix"] == _PREFIXES[0]]
    by_rows = {r["rows"]: r for r in ours}
    one, wide = by_rows.get(1), by_rows.get(64)
    peak = 4800.0 if device is not None and "H200" in device["name"] else None
    host = [r["host_us"] for r in found["decode"] if r["engine"] in ("ptd", "hybrid")]
    return {
        "plain_of_4800_gb_s": {
            "aim": 0.78,
            "found": one["gb_s"] / peak if one is not None and peak is not None else None,
        },
        "64_rows_to_one": {"aim": 1.10, "found": wide["to_one_row"] if wide is not None else None},
        "plan_and_commit_us": {"aim": 30.0, "found": max(host, default=None)},
    }
