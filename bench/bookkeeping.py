"""The core's own time: microseconds of plan and commit, by nodes a step and by output length.

A toy model of two table look-ups stands in for the forward pass, outside the timing. The time is
that of the C++ core as Python calls it, binding included.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.common import integers, positive, ratio
from bench.drafter_costs import drafters_table, measure_drafters
from bench.report import Document, TitledTable, make_table
from bench.toy import MAX_PATH, PROMPT_TOKENS, Loop, ToyModel
from ptd_engine import _core
from ptd_engine.config import MAX_TREE_NODES
from ptd_engine.errors import ConfigError

BAR_US = 50.0  # plan + commit, at
BAR_NODES = 64
_FILLED = 0.8  # of the nodes asked for, at least, for a time to count as that size's
_EVICT_BYTES = 16 * 2**20  # read between plan and commit: what a forward leaves of the L1 and L2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument(
        "--nodes",
        type=integers,
        default=[8, 16, 32, 64, 128, 255],
        metavar="N,...",
        help="candidate and draft nodes a step, half of each",
    )
    parser.add_argument(
        "--tokens",
        type=integers,
        default=[100, 1_000, 10_000, 100_000],
        metavar="T,...",
        help=f"lengths of the output at which a step of {BAR_NODES} nodes is timed",
    )
    parser.add_argument(
        "--drafter",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME[:OPTION=VALUE,...]",
        help="to time besides, as it is",
    )
    parser.add_argument("--warm-up", type=positive, default=20_000, metavar="T", help="tokens")
    parser.add_argument("--steps", type=positive, default=1000, help="timed steps a size")
    parser.add_argument("--seed", type=int, default=0, help="of the toy model")


def run(args: argparse.Namespace) -> Document:
    """Measure. Raises ConfigError for a step that is too large."""
    if not 2 <= args.nodes[0] <= args.nodes[-1] < MAX_TREE_NODES:
        raise ConfigError.for_field("nodes", args.nodes, f"2 to {MAX_TREE_NODES - 1}")
    longest = max(args.warm_up, args.tokens[-1])
    most = longest + 2 * args.steps * MAX_PATH  # more than the timed steps can add
    model = ToyModel.make(PROMPT_TOKENS + most + 2 * MAX_PATH, args.seed)
    wrong: list[dict[str, Any]] = []
    sizes = []
    for nodes in args.nodes:
        loop = Loop(model, drafter_of_size(nodes), most)
        loop.run_until(args.warm_up)
        warm = loop.measure(args.steps).result()
        cold = loop.measure(args.steps, _evict()).result()
        position = loop.check()
        if position is not None:
            wrong.append({"nodes": nodes, "position": position})
            continue
        mean = warm["mean_candidate_nodes"] + warm["mean_draft_nodes"]
        sizes.append(
            {
                "nodes": nodes,
                "mean_nodes": mean,
                "filled": mean >= _FILLED * nodes,
                "warm_caches": warm,
                "cold_caches": cold,
            }
        )
    lengths = _lengths(model, args, most, wrong)
    drafters, differing = measure_drafters(
        args.drafter, model, most, args.warm_up, args.steps, _evict()
    )
    wrong += differing
    results: dict[str, Any] = {
        "by_nodes": sizes,
        "by_tokens": lengths,
        "by_drafter": drafters,
        "bar": _bar(sizes),
        "growth": _growth(lengths),
        "mismatches": wrong,
    }
    results["ok"] = False if wrong else results["bar"]["ok"]
    settings = {
        "nodes": args.nodes,
        "tokens": args.tokens,
        "warm_up_tokens": args.warm_up,
        "steps": args.steps,
        "drafters": args.drafter,
        "seed": args.seed,
        "toy_vocabulary": model.successors.shape[0],
        "toy_branches": model.successors.shape[1],
        "evicted_bytes": _EVICT_BYTES,
    }
    return Document(
        "bookkeeping",
        correct=not wrong,
        settings=settings,
        results=results,
        tables=[
            *_tables(sizes, lengths, args.steps),
            *([drafters_table(drafters, args.steps)] if drafters else []),
        ],
        notes=_notes(results),
    )


def drafter_of_size(nodes: int) -> _core.PTDDrafter:
    """PTD with half of its nodes candidates and half drafts.

    Its tree is the paper's (width 4, depth 6) as long as that one can fill the budget, which ends
    at about 36 draft nodes. The pool keeps twice the budget, so candidates are chosen best-first.
    """
    drafts = nodes // 2
    width, depth = (4, 6) if drafts <= 36 else (8, 10)
    candidates = nodes - drafts
    return _core.PTDDrafter(
        width=width,
        depth=depth,
        max_draft_nodes=drafts,
        max_candidate_nodes=candidates,
        pool_nodes_per_key=max(60, 2 * candidates),
    )


def _lengths(
    model: ToyModel, args: argparse.Namespace, most: int, wrong: list[dict[str, Any]]
) -> list[dict[str, float]]:
    """One long output at the bar's size, timed where it reaches each length."""
    loop = Loop(model, drafter_of_size(BAR_NODES), most)
    lengths: list[dict[str, float]] = []
    for tokens in args.tokens:
        loop.run_until(tokens)
        # Short outputs change fast: no more steps than keep the length about what it says.
        steps = max(20, min(args.steps, tokens // 10))
        lengths.append(
            {"tokens": tokens, "from_token": loop.generated, **loop.measure(steps).result()}
        )
    position = loop.check()
    if position is None:
        return lengths
    wrong.append({"nodes": BAR_NODES, "position": position})
    return []


def _evict() -> Callable[[], object]:
    data = np.ones(_EVICT_BYTES // 8, dtype=np.float64)
    return data.max


def _growth(lengths: list[dict[str, float]]) -> float | None:
    """Time at the longest output over that at the first length with full trees; None if none is."""
    full = [
        s["total_us"]
        for s in lengths
        if s["mean_candidate_nodes"] + s["mean_draft_nodes"] >= _FILLED * BAR_NODES
    ]
    return ratio(full[-1], full[0]) if full else None


def _bar(sizes: list[dict[str, Any]]) -> dict[str, Any]:
    found = next((s for s in sizes if s["nodes"] == BAR_NODES), None)
    bar: dict[str, Any] = {"nodes": BAR_NODES, "limit_us": BAR_US, "total_us": None, "ok": None}
    if found is not None:
        # The stricter of the two: a real forward pass leaves nothing of these caches.
        total = max(found["warm_caches"]["total_us"], found["cold_caches"]["total_us"])
        bar |= {"total_us": total, "ok": bool(found["filled"] and total <= BAR_US)}
    return bar


def _tables(
    sizes: list[dict[str, Any]], lengths: list[dict[str, float]], steps: int
) -> list[TitledTable]:
    by_nodes = [
        (
            str(s["nodes"]),
            f"{s['warm_caches']['mean_candidate_nodes']:.1f}",
            f"{s['warm_caches']['mean_draft_nodes']:.1f}",
            "yes" if s["filled"] else "NO",
            *(f"{s['warm_caches'][key]:.1f}" for key in _TIMES),
            *(f"{s['cold_caches'][key]:.1f}" for key in _TIMES),
        )
        for s in sizes
    ]
    times = [name.removesuffix("_us").removeprefix("total_") for name in _TIMES]
    by_tokens = [
        (
            str(s["tokens"]),
            f"{s['mean_candidate_nodes']:.1f}",
            f"{s['mean_draft_nodes']:.1f}",
            *(f"{s[key]:.1f}" for key in _TIMES),
        )
        for s in lengths
    ]
    return [
        make_table(
            f"bookkeeping: microseconds a step by nodes, median of {steps} steps",
            ("nodes", "Ver", "Dft", "filled", *times, *(f"cold {name}" for name in times)),
            by_nodes,
        ),
        make_table(
            f"bookkeeping: microseconds a step of {BAR_NODES} nodes by output length, in tokens",
            ("tokens", "Ver", "Dft", *times),
            by_tokens,
        ),
    ]


_TIMES = ("plan_us", "commit_us", "total_us", "total_p99_us")


def _name(mismatch: dict[str, Any]) -> str:
    return str(mismatch["drafter"]) if "drafter" in mismatch else f"{mismatch['nodes']} nodes"


def _notes(results: dict[str, Any]) -> list[str]:
    notes = [
        f"DIFFERS from plain decoding with {_name(m)} at output token {m['position']}: not timed"
        for m in results["mismatches"]
    ]
    bar = results["bar"]
    if results["growth"] is not None:
        notes.append(f"longest output / shortest with full trees: {results['growth']:.2f}")
    if bar["total_us"] is not None:
        notes.append(
            f"plan + commit at {bar['nodes']} nodes: {bar['total_us']:.1f} us, "
            f"limit {bar['limit_us']:.0f} us: {'ok' if bar['ok'] else 'NOT MET'}"
        )
    return notes
