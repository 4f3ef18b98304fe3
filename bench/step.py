"""The step-time curve: milliseconds of one forward and select, by rows and by prefix length.

Sizes take turns, so that a change of the machine's load meets all of them. The root's next token
must not depend on how many rows the step has; where it does, nothing is timed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.bucket_choice import ROWS_ASKED, choose, counts_of, interpolated
from bench.common import (
    add_model_arguments,
    collector_off,
    integers,
    model_settings,
    positive,
    ratio,
    top2_gap,
)
from bench.environment import read_bandwidth
from bench.report import Document, TitledTable, make_table
from ptd_engine import _core
from ptd_engine.config import MAX_TREE_NODES, PTDConfig
from ptd_engine.errors import ConfigError
from ptd_engine.llm import LLM
from ptd_engine.model import CausalLM
from ptd_engine.runner import Runner

_MAX_DEPTH = 8  # of the trees; PTD's default draft tree is at most 7 deep
_CANDIDATE_SHARE = 0.4  # PTD's long-run mix: 25 candidates and 36 drafts a step
_DRAFT_ROOTS = 4
_WARM_UPS = 3
_PERIOD = 24  # tokens of the repeated text in the cache: a trained model continues it surely


@dataclass(frozen=True)
class Sample:
    """Times of one step size at one prefix length."""

    prefix: int
    rows: int
    milliseconds: list[float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    add_model_arguments(parser)
    parser.add_argument(
        "--rows", type=integers, default=[1, 2, 4, 8, 16, 32, 48, 64, 96, 128], metavar="N,..."
    )
    parser.add_argument(
        "--prefix", type=integers, default=[32, 512, 2048], metavar="L,...", help="cached tokens"
    )
    parser.add_argument("--repeats", type=positive, default=21, metavar="R")
    parser.add_argument("--seed", type=int, default=0, help="of the trees and their tokens")
    parser.add_argument(
        "--decode",
        default=ROWS_ASKED,
        metavar="FILE",
        help="of simulate-decode: the rows that a run asked for, to choose buckets for",
    )


def run(args: argparse.Namespace) -> Document:
    """Measure. Raises PTDError for arguments that cannot be served."""
    rows = sorted({1, *args.rows})  # one row is what the others are compared with
    if rows[-1] > MAX_TREE_NODES:
        raise ConfigError.for_field("rows", rows[-1], f"1 to {MAX_TREE_NODES}")
    llm = LLM.from_pretrained(
        args.model,
        dtype=args.dtype,
        device=args.device,
        kernels=args.kernels,
        num_threads=args.threads,
        max_seq_len=max(args.prefix) + _MAX_DEPTH + 1,
        drafter=drafter_of_size(rows[-1]),
    )
    model, runner = llm.model, llm.engine.runner
    bandwidth = read_bandwidth(model.device)
    samples: list[Sample] = []
    mismatches: list[dict[str, Any]] = []
    for prefix in args.prefix:
        steps = prepare(runner, rows, prefix, model.config.vocab_size, args.seed)
        wrong = check_root(runner, steps, prefix)
        mismatches += wrong
        if not wrong:
            samples += measure(runner, steps, prefix, args.repeats)
    results: dict[str, Any] = {
        "weight_bytes": model.weight_bytes,
        "kv_bytes_per_token": _kv_bytes(model),
        "read_gb_s": bandwidth.best_gb_s,
        "steps": [_result(s, samples, model, bandwidth.best_gb_s) for s in samples],
        "buckets": _buckets(samples, args.decode, model, runner.max_nodes) if samples else None,
        "mismatches": mismatches,
    }
    settings = {
        **model_settings(args, model),
        "rows": rows,
        "prefix": args.prefix,
        "repeats": args.repeats,
        "seed": args.seed,
    }
    return Document(
        "step",
        correct=not mismatches,
        settings=settings,
        results=results,
        tables=[_table(settings, results)] if samples else [],
        notes=_bucket_notes(results["buckets"])
        + [
            f"DIFFERS: after {m['prefix']} cached tokens the root's next token is {m['expected']} "
            f"in a step of 1 row and {m['got']} in a step of {m['rows']} rows (top-2 logit "
            f"gap {m['top2_gap']}): not timed"
            for m in mismatches
        ],
        device=model.device,
        bandwidth=bandwidth if model.device.type == "cpu" else None,
    )


def _buckets(
    samples: Sequence[Sample], decode: str, model: CausalLM, largest: int
) -> dict[str, Any]:
    """Node buckets for the rows that a decode run asked for, at the costs measured here."""
    prefix = samples[0].prefix
    measured = {
        s.rows: statistics.median(s.milliseconds) / 1e3 for s in samples if s.prefix == prefix
    }
    counts: Counter[int] = Counter()
    for rows, steps in counts_of(decode).items():
        counts[min(rows, largest)] += steps
    return choose(
        counts,
        interpolated(measured),
        label=f"measured on {model.device} behind {prefix} tokens",
        top=largest,
    )


def drafter_of_size(rows: int) -> str | PTDConfig:
    """A drafter for which the engine builds a runner of this many rows."""
    if rows == 1:
        return "none"
    drafts = max(1, (rows - 1) // 2)
    return PTDConfig(max_draft_nodes=drafts, max_candidate_nodes=rows - 1 - drafts)


def realistic_tree(root: int, rows: int, vocab_size: int, seed: int) -> _core.TreeBuilder:
    """A random tree shaped like PTD's: 2 candidates to 3 drafts, chains that fork.

    A node's parent is the node before it or, as often, any earlier one of its kind; drafts hang
    below up to four roots.
    """
    draw = random.Random(seed)
    tree = _core.TreeBuilder(root, max_nodes=rows)
    candidates = round(_CANDIDATE_SHARE * (rows - 1))
    depth = {0: 0}

    def grow(count: int, first_roots: int, *, draft: bool) -> None:
        add = tree.add_draft if draft else tree.add_candidate
        nodes: list[int] = []
        for index in range(count):
            parent = 0
            if index >= first_roots and draw.random() < 0.5:
                parent = nodes[-1]
            elif index >= first_roots:
                parent = draw.choice(nodes)
            if depth[parent] == _MAX_DEPTH:
                parent = nodes[0]
            node = add(parent, draw.randrange(vocab_size))
            depth[node] = depth[parent] + 1
            nodes.append(node)

    grow(candidates, 2, draft=False)
    grow(rows - 1 - candidates, _DRAFT_ROOTS, draft=True)
    return tree


def prepare(
    runner: Runner, rows: Sequence[int], prefix: int, vocab_size: int, seed: int
) -> dict[int, tuple[npt.NDArray[np.uint8], int]]:
    """Fill the cache with `prefix` tokens; returns rows -> (packed plan, node bucket)."""
    draw = random.Random(seed)
    period = [draw.randrange(vocab_size) for _ in range(_PERIOD)]
    tokens = [period[i % _PERIOD] for i in range(prefix + 1)]
    runner.prefill(tokens[:prefix], prompt_len=prefix + 1)
    steps = {}
    for count in rows:
        bucket = min((b for b in runner.node_buckets if b >= count), default=count)
        tree = realistic_tree(tokens[prefix], count, vocab_size, seed)
        block = tree.pack(prefix, n_bucket=bucket, max_path=runner.max_path)
        steps[count] = (np.frombuffer(block, dtype=np.uint8), bucket)
    return steps


def step(runner: Runner, block: npt.NDArray[np.uint8], bucket: int) -> tuple[float, int]:
    """Run a packed plan; returns (milliseconds from launch to result, root's next token)."""
    runner.staging[: block.size] = block
    start = time.perf_counter()
    runner.launch(bucket)
    output = runner.wait()
    return 1e3 * (time.perf_counter() - start), int(output[0, 0])


def check_root(
    runner: Runner, steps: dict[int, tuple[npt.NDArray[np.uint8], int]], prefix: int
) -> list[dict[str, Any]]:
    """Row counts at which the root's next token is not that of a one-row step (also warms up)."""
    tokens = {}
    for _ in range(_WARM_UPS):
        for count, (block, bucket) in steps.items():
            tokens[count] = step(runner, block, bucket)[1]
    wrong = [n for n, token in tokens.items() if token != tokens[1] or token < 0]
    if not wrong:
        return []
    step(runner, *steps[1])
    gap = top2_gap(runner)
    return [
        {"prefix": prefix, "rows": n, "expected": tokens[1], "got": tokens[n], "top2_gap": gap}
        for n in wrong
    ]


def measure(
    runner: Runner,
    steps: dict[int, tuple[npt.NDArray[np.uint8], int]],
    prefix: int,
    repeats: int,
) -> list[Sample]:
    """Time every size `repeats` times, in turns, each round beginning with another size."""
    times: dict[int, list[float]] = {count: [] for count in steps}
    order = list(steps)
    with collector_off():
        for repeat in range(repeats):
            first = repeat % len(order)
            for count in order[first:] + order[:first]:
                block, bucket = steps[count]
                times[count].append(step(runner, block, bucket)[0])
    return [Sample(prefix, count, times[count]) for count in order]


def _kv_bytes(model: CausalLM) -> int:
    config = model.config
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * model.dtype.itemsize


def _result(
    sample: Sample, samples: Sequence[Sample], model: CausalLM, read_gb_s: float
) -> dict[str, Any]:
    one = next(s for s in samples if s.prefix == sample.prefix and s.rows == 1)
    ms = statistics.median(sample.milliseconds)
    kv_bytes = sample.prefix * _kv_bytes(model)
    roofline_ms = model.weight_bytes / read_gb_s / 1e6
    return {
        "prefix": sample.prefix,
        "rows": sample.rows,
        "ms": ms,
        "ms_min": min(sample.milliseconds),
        "ms_max": max(sample.milliseconds),
        "ratio_to_one_row": ratio(ms, statistics.median(one.milliseconds)),
        "roofline_ms": roofline_ms,
        "roofline_with_kv_ms": (model.weight_bytes + kv_bytes) / read_gb_s / 1e6,
        "weights_gb_s": ratio(model.weight_bytes, ms * 1e6),
        "roofline_share": ratio(roofline_ms, ms),
    }


def _bucket_notes(buckets: dict[str, Any] | None) -> list[str]:
    if buckets is None:
        return []
    return [
        f"node buckets, {name}, for {buckets['steps']} steps of {buckets['mean_rows']:.1f} rows, "
        f"costs {buckets['costs']}: {found['node_buckets']}: {100 * found['padded_rows']:.1f}% of "
        f"the rows are padding, {100 * found['extra_time']:.1f}% more time"
        for name in ("chosen", "default", "one")
        for found in [buckets[name]]
    ]


def _table(settings: dict[str, Any], results: dict[str, Any]) -> TitledTable:
    title = (
        f"step: {settings['model']}, {settings['dtype']}, {settings['device']}, "
        f"{results['weight_bytes'] / 1e6:.0f} MB of weights at {results['read_gb_s']:.1f} GB/s, "
        f"median of {settings['repeats']}"
    )
    columns = ("prefix", "rows", "ms", "to 1 row", "roofline ms", "with KV", "GB/s", "of roofline")
    rows = [
        (
            str(s["prefix"]),
            str(s["rows"]),
            f"{s['ms']:.3f}",
            f"{s['ratio_to_one_row']:.2f}",
            f"{s['roofline_ms']:.3f}",
            f"{s['roofline_with_kv_ms']:.3f}",
            f"{s['weights_gb_s']:.2f}",
            f"{100 * s['roofline_share']:.0f}%",
        )
        for s in results["steps"]
    ]
    return make_table(title, columns, rows)
