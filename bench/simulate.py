"""Predict tokens a second on a GPU that is not here: no figure of this benchmark is a measurement.

Steps are computed from a device's bandwidth, arithmetic and launch cost (bench/gpus.py) and a
model's shapes (bench/step_model.py); tokens a step are those that committed runs of the demo model
measured. --validate computes the steps of committed runs on a CPU in the same way and says how far
off it is.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

import torch

from bench.acceptance import DEFAULT_SOURCES, HOST_TIMES, load_draftings, load_host_times
from bench.common import integers, positive
from bench.gpus import ASSUMED, GPUS
from bench.model_shapes import SHAPES, load_shape
from bench.report import Document, TitledTable, make_table
from bench.simulate_check import validate
from bench.simulate_predict import numbers, predict, replaced, step_model

_DTYPES = ("bfloat16", "float16", "int8", "int4")
_LABEL = "PREDICTION, not measured"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--gpu", nargs="+", choices=GPUS, default=["h200"], metavar="NAME")
    parser.add_argument(
        "--model",
        nargs="+",
        default=["llama-3.1-8b"],
        metavar="NAME",
        help=f"{', '.join(SHAPES)}, or the path of a config.json",
    )
    parser.add_argument("--dtype", choices=_DTYPES, default="bfloat16", help="of the weights")
    parser.add_argument("--prefix", type=integers, default=[512, 2048, 8192, 32768], metavar="L,…")
    parser.add_argument(
        "--rows",
        type=integers,
        default=[1, 8, 16, 32, 48, 64, 96, 128],
        metavar="N,...",
        help="of the curve of step times",
    )
    add_device_arguments(parser)
    parser.add_argument(
        "--tensor-parallel", type=positive, default=1, metavar="N", help="GPUs that share the model"
    )
    parser.add_argument(
        "--graphs",
        choices=("auto", "on", "off"),
        default="auto",
        help="whether steps are captured; auto: with one GPU, as this engine does",
    )
    parser.add_argument(
        "--acceptance",
        nargs="+",
        default=list(DEFAULT_SOURCES),
        metavar="FILE",
        help="documents of paper, decode or hybrid, below bench/results or anywhere",
    )
    parser.add_argument("--host-times", default=HOST_TIMES, metavar="FILE", help="of bookkeeping")
    parser.add_argument(
        "--validate",
        nargs="+",
        metavar="FILE",
        help="documents of `step` or `hybrid` measured on this CPU: compute the same steps instead",
    )


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """--set, for what predicts."""
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="FIELD=NUMBER",
        help=f"in place of the GPU's: {', '.join(numbers())}",
    )


def run(args: argparse.Namespace) -> Document:
    """Predict, or compare predictions with committed measurements.

    Raises:
        ConfigError: an unknown model, field or file, or a model that cannot be cut as asked.
    """
    if args.validate:
        return validate(args.validate)
    draftings = load_draftings(args.acceptance)
    host = load_host_times(args.host_times)
    devices = {name: replaced(GPUS[name], args.set) for name in args.gpu}
    ranks = args.tensor_parallel
    graphs = args.graphs == "on" or (args.graphs == "auto" and ranks == 1)
    predictions = []
    for name, device in devices.items():
        for model_name in args.model:
            model = step_model(device, load_shape(model_name), args.dtype, ranks, graphs=graphs)
            named = {"gpu": name, "model": model_name}
            predictions.append(named | predict(model, draftings, host, args.prefix, args.rows))
    return Document(
        "simulate",
        correct=True,
        settings={
            "label": _LABEL,
            "gpus": {name: asdict(device) for name, device in devices.items()},
            "assumed": dict(ASSUMED),
            "models": args.model,
            "dtype": args.dtype,
            "prefix": args.prefix,
            "tensor_parallel": args.tensor_parallel,
            "graphs": args.graphs,
            "acceptance": args.acceptance,
            "host_times": {"document": args.host_times, "caches": host.caches},
        },
        results={"prediction": True, "predictions": predictions},
        tables=[table for found in predictions for table in _tables(found, args.dtype)],
        notes=[
            f"{_LABEL}. Tokens a step are those of the demo model; another model has others.",
            *(f"assumed {field}: {why}" for field, why in ASSUMED.items()),
        ],
        device=torch.device("cpu"),
    )


def _tables(found: dict[str, Any], dtype: str) -> list[TitledTable]:
    ranks = "" if found["ranks"] == 1 else f" on {found['ranks']} of them"
    title = f"{_LABEL}: {found['model']}, {dtype}, {found['device']}{ranks}"
    prefixes = list(dict.fromkeys(c["prefix"] for c in found["curve"]))
    curve = {(c["rows"], c["prefix"]): c for c in found["curve"]}
    steps = [
        (
            str(rows),
            *(f"{curve[rows, p]['ms']:.3f} ({curve[rows, p]['to_one_row']:.2f})" for p in prefixes),
        )
        for rows in sorted({c["rows"] for c in found["curve"]})
    ]
    heads = [f"ms behind {p} (of 1 row)" for p in prefixes]
    speeds = [
        (
            d["drafter"] if d["budget"] is None else f"{d['drafter']}, {d['budget']} rows",
            *(f"{d['rows']:.1f}", str(d["bucket"]), f"{d['tokens_a_step']:.2f}"),
            f"{d['host_us']:.0f}",
            *(
                f"{e['tokens_per_second']:.0f} ({e['speedup']:.2f}x)"
                for e in found["drafters"]
                if (e["drafter"], e["budget"], e["rows"]) == (d["drafter"], d["budget"], d["rows"])
            ),
        )
        for d in found["drafters"]
        if d["prefix"] == prefixes[0]
    ]
    columns = ("drafter", "rows", "bucket", "tokens a step", "host us")
    return [
        make_table(f"{title}, a step", ("rows", *heads), steps),
        make_table(f"{title}, tokens/s", (*columns, *(f"behind {p}" for p in prefixes)), speeds),
    ]
