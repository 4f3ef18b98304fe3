"""Drafters against plain decoding, on the same weights, kernels and prompts.

Plain decoding and every drafter take turns prompt by prompt, so that a change of the machine's
load meets all of them. An output that differs from plain decoding gets no time.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench.common import (
    add_model_arguments,
    add_prompt_arguments,
    choose_drafters,
    load_plain,
    model_settings,
    ratio,
)
from bench.paired import PLAIN, Mismatch, PromptRuns, find_mismatches, measure
from bench.prompt_sets import PromptSet, load_sets
from bench.report import Document, make_table
from ptd_engine.cli.requests import chat_form, encode
from ptd_engine.config import SamplingParams
from ptd_engine.llm import LLM
from ptd_engine.metrics import GenerationStats

_TOTAL = "total"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    add_model_arguments(parser)
    add_prompt_arguments(parser)
    parser.add_argument(
        "--drafter",
        nargs="+",
        action="extend",
        metavar="NAME[:OPTION=VALUE,...]",
        help="to compare with plain decoding (default: ptd and hybrid); ptd:width=4,depth=6 sets "
        "fields of its configuration, the others keep the published values; file:PATH.py:CLASS is "
        "your own",
    )
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> Document:
    """Measure. Raises PTDError for arguments that cannot be served."""
    params = SamplingParams(
        max_new_tokens=args.max_new_tokens, temperature=args.temperature, seed=args.seed
    )
    sets = load_sets(args)
    base = load_plain(args)
    as_chat = chat_form(base, False if args.raw else None)
    prompts = [
        PromptRuns(s.name, item.id, encode(base, item.text, as_chat=as_chat), {})
        for s in sets
        for item in s.items
    ]
    labels = [label for label in args.drafter or ["ptd", "hybrid"] if label != PLAIN]
    choices = choose_drafters(labels, base.model.device.type)
    # One cache an engine: as long as these prompts need it, not as long as the model allows.
    longest = max(len(p.prompt_ids) for p in prompts) + args.max_new_tokens
    length = min(longest, base.engine.max_seq_len)
    model, tokenizer = base.model, base.tokenizer
    engines = {PLAIN: LLM.from_model(model, tokenizer, max_seq_len=length, drafter=PLAIN)}
    for choice in choices:
        engines[choice.label] = LLM.from_model(
            model, tokenizer, max_seq_len=length, drafter=choice.spec
        )
    measure(engines, prompts, params, args.repeats)
    mismatches = find_mismatches(prompts, engines[PLAIN])
    settings = {
        **model_settings(args, model),
        "weight_bytes": model.weight_bytes,
        "prompt_sets": [{"name": s.name, "prompts": len(s.items)} for s in sets],
        "chat_template": as_chat,
        "max_new_tokens": args.max_new_tokens,
        "temperature": args.temperature,
        "seed": args.seed,
        "repeats": args.repeats,
        "drafters": {choice.label: choice.as_json() for choice in choices},
    }
    return _document(settings, sets, prompts, [c.label for c in choices], mismatches, base)


def summarise(prompts: Sequence[PromptRuns], label: str) -> dict[str, Any]:
    """Plain decoding or a drafter on these prompts: speed, the paper's metrics, where time went.

    Times are those of the median repeat, summed over prompts; tokens_per_second includes prefill.
    """
    stats = GenerationStats.merge([p.median(label) for p in prompts])
    summary: dict[str, Any] = {
        "drafter": label,
        "identical": True,
        "tokens": stats.tokens,
        "steps": stats.steps,
        "tokens_per_second": stats.tokens_per_second,
        "ms_per_step": 1e3 * ratio(stats.decode_time_s, stats.steps),
        "time_to_first_token_ms": 1e3 * stats.time_to_first_token_s,
        "seconds": {
            "total": stats.total_time_s,
            "prefill": stats.total_time_s - stats.decode_time_s,
            "plan": stats.plan_time_s,
            "forward": stats.forward_time_s,
            "commit": stats.commit_time_s,
        },
    }
    if label == PLAIN:
        return summary
    plain = GenerationStats.merge([p.median(PLAIN) for p in prompts])
    pairs = [(p.median(PLAIN).total_time_s, p.median(label).total_time_s) for p in prompts]
    return summary | {
        "speedup": stats.speedup(plain),
        "median_prompt_speedup": statistics.median(ratio(a, b) for a, b in pairs),
        "step_cost_ratio": stats.step_cost(plain),
        "decoding_efficiency": stats.decoding_efficiency,
        "hit_rate": stats.hit_rate,
        "accept_length": stats.accept_length,
        "mean_draft_nodes": stats.mean_draft_nodes,
        "mean_candidate_nodes": stats.mean_candidate_nodes,
        "accepted_step_rate": stats.accepted_step_rate,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "draft_acceptance_rate": stats.draft_acceptance_rate,
        "acceptance_histogram": list(stats.acceptance_histogram),
        "acceptance_by_depth": list(stats.acceptance_by_depth),
        "conditional_acceptance": list(stats.conditional_acceptance),
    }


def _document(
    settings: dict[str, Any],
    sets: Sequence[PromptSet],
    prompts: Sequence[PromptRuns],
    labels: Sequence[str],
    mismatches: Sequence[Mismatch],
    base: LLM,
) -> Document:
    results, table_rows = [], []
    for name in [*(s.name for s in sets), _TOTAL]:
        chosen = [p for p in prompts if name in (p.prompt_set, _TOTAL)]
        rows = []
        for label in [PLAIN, *labels]:
            # Without a reference that repeats itself no comparison means anything.
            wrong = any(
                m.drafter in (label, PLAIN) and name in (m.prompt_set, _TOTAL) for m in mismatches
            )
            row = {"drafter": label, "identical": False} if wrong else summarise(chosen, label)
            rows.append(row)
            table_rows.append(_table_row(name, row))
        results.append(
            {"prompt_set": name, "prompts": len(chosen), "plain": rows[0], "drafters": rows[1:]}
        )
    bad = {(m.prompt_set, m.prompt_id, label) for m in mismatches for label in _untimed(m, labels)}
    per_prompt = [
        {
            "prompt_set": p.prompt_set,
            "id": p.prompt_id,
            "prompt_tokens": len(p.prompt_ids),
            "tokens": len(p.runs[PLAIN][0].token_ids),
            "seconds": {
                label: p.median(label).total_time_s
                for label in p.runs
                if (p.prompt_set, p.prompt_id, label) not in bad
            },
        }
        for p in prompts
    ]
    return Document(
        "decode",
        correct=not mismatches,
        settings=settings,
        results={
            "sets": results,
            "prompts": per_prompt,
            "mismatches": [asdict(m) for m in mismatches],
        },
        tables=[make_table(_title(settings), _COLUMNS, table_rows, text_columns=2)],
        notes=[str(m) for m in mismatches],
        device=base.model.device,
    )


def _untimed(mismatch: Mismatch, labels: Sequence[str]) -> Sequence[str]:
    return [PLAIN, *labels] if mismatch.drafter == PLAIN else [mismatch.drafter]


_COLUMNS = (
    *("set", "drafter", "tok/s", "speed-up", "median", "DE", "HR", "AL", "Dft", "Ver"),
    *("ms/step", "step cost", "prefill", "forward", "plan us", "commit us"),
)


def _title(settings: Mapping[str, Any]) -> str:
    return (
        f"decode: {settings['model']}, {settings['dtype']}, {settings['device']}, at most "
        f"{settings['max_new_tokens']} tokens, temperature {settings['temperature']:g}, median of "
        f"{settings['repeats']} (prefill, forward: share of "
        "the time; plan, commit: a step)"
    )


def _table_row(name: str, row: Mapping[str, Any]) -> list[str]:
    if not row["identical"]:
        return [name, row["drafter"], "differs"]
    seconds = row["seconds"]
    shares = [
        f"{100 * ratio(seconds[part], seconds['total']):.1f}%" for part in ("prefill", "forward")
    ]
    host = [f"{1e6 * ratio(seconds[part], row['steps']):.0f}" for part in ("plan", "commit")]
    drafted = [""] * 7
    step_cost = ""
    if row["drafter"] != PLAIN:
        drafted = [
            f"{row['speedup']:.2f}",
            f"{row['median_prompt_speedup']:.2f}",
            f"{row['decoding_efficiency']:.2f}",
            f"{row['hit_rate']:.2f}",
            f"{row['accept_length']:.2f}",
            f"{row['mean_draft_nodes']:.1f}",
            f"{row['mean_candidate_nodes']:.1f}",
        ]
        step_cost = f"{row['step_cost_ratio']:.2f}"
    speed = f"{row['tokens_per_second']:.1f}"
    return [
        name,
        row["drafter"],
        speed,
        *drafted,
        f"{row['ms_per_step']:.2f}",
        step_cost,
        *shares,
        *host,
    ]
