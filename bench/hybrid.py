"""The hybrid drafter: budgets, sources one by one, what draft rows bring, and how far it is right.

Plain decoding and every variant take turns prompt by prompt; an output that differs from plain
decoding's fails the run. Of the automatic budget a trace is kept, of the predictions how many of
each tenth came true. With --out FILE the plots are written beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.common import (
    add_model_arguments,
    add_prompt_arguments,
    integers,
    load_plain,
    model_settings,
    ratio,
)
from bench.hybrid_plots import draw
from bench.paired import PLAIN, PromptRuns, find_mismatches, run_in_turn, warm_up
from bench.prompt_sets import load_sets
from bench.report import Document, TitledTable, make_table
from ptd_engine import _core
from ptd_engine.cli.requests import chat_form, encode
from ptd_engine.config import SamplingParams
from ptd_engine.llm import LLM
from ptd_engine.metrics import GenerationStats

AUTO = "auto"
_SOURCES = 7
_POOL = 5  # the bit of PTD's pool: it has something to say only with draft rows


@dataclass(frozen=True)
class Variant:
    """One setting of the drafter.

    Attributes:
        kind: the table it belongs to: "budget", "without" (a source) or "split".
        name: its row there.
        options: of `_core.HybridDrafter`.
    """

    kind: str
    name: str
    options: Mapping[str, Any]

    @property
    def label(self) -> str:
        """Unique among all."""
        return f"{self.kind} {self.name}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    add_model_arguments(parser)
    add_prompt_arguments(parser)
    parser.add_argument(
        "--budgets", type=integers, default=[4, 8, 12, 16, 24, 32, 48, 64, 96, 128], metavar="N,..."
    )
    parser.add_argument(
        "--rows", type=int, default=63, metavar="N", help="of the comparisons at one budget"
    )
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)


def variants(budgets: Sequence[int], rows: int) -> list[Variant]:
    """All settings: budgets, each source left out, draft rows in place of candidates."""
    made = [Variant("budget", AUTO, {"max_candidate_nodes": 64, "auto_budget": True})]
    made += [Variant("budget", str(n), {"max_candidate_nodes": n}) for n in budgets]
    everything = (1 << _SOURCES) - 1
    names = list(_core.HybridDrafter().source_counts)
    made.append(Variant("without", "nothing", {"max_candidate_nodes": rows}))
    for bit, name in enumerate(names):
        if bit != _POOL:
            options = {"max_candidate_nodes": rows, "sources": everything & ~(1 << bit)}
            made.append(Variant("without", name, options))
    for drafts in (0, rows // 8, rows // 4, rows // 2):
        options = {"max_candidate_nodes": rows - drafts, "max_draft_nodes": drafts, "width": 2}
        made.append(Variant("split", f"{rows - drafts} + {drafts}", options))
    return made


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
    longest = max(len(p.prompt_ids) for p in prompts) + args.max_new_tokens
    length = min(longest, base.engine.max_seq_len)
    eos = list(base.engine.eos_token_ids)
    chosen = variants(args.budgets, args.rows)
    engines = {PLAIN: _engine(base, length, PLAIN)}
    for variant in chosen:
        drafter = _core.HybridDrafter(**variant.options, eos_ids=eos)
        engines[variant.label] = _engine(base, length, drafter)
    watch = _Watch(engines[f"budget {AUTO}"], base.model.config.vocab_size)
    warm_up(engines, prompts[0].prompt_ids, params)
    for repeat in range(args.repeats):
        for turn, prompt in enumerate(prompts):
            run_in_turn(engines, prompt, params, turn)
            if repeat == 0:
                watch.take(prompt)
    mismatches = find_mismatches(prompts, engines[PLAIN])
    times = engines[f"budget {AUTO}"].engine.step_times
    assert times is not None  # the automatic budget asks for them
    results = {
        "variants": [_result(v, prompts) for v in chosen],
        "plain_tokens_per_second": _merged(prompts, PLAIN).tokens_per_second,
        "step_times": asdict(times),
        "trace": watch.trace,
        "reliability": watch.reliability(),
        "slowest": _slowest(prompts),
        "mismatches": [asdict(m) for m in mismatches],
    }
    settings = {
        **model_settings(args, base.model),
        "prompt_sets": [{"name": s.name, "prompts": len(s.items)} for s in sets],
        "chat_template": as_chat,
        "max_new_tokens": args.max_new_tokens,
        "temperature": args.temperature,
        "seed": args.seed,
        "repeats": args.repeats,
        "rows": args.rows,
    }
    if args.out is not None and not mismatches:
        draw(results, args.out.parent)
    return Document(
        "hybrid",
        correct=not mismatches,
        settings=settings,
        results=results,
        tables=[] if mismatches else _tables(results),
        notes=[str(m) for m in mismatches],
        device=base.model.device,
    )


def _engine(base: LLM, length: int, drafter: str | _core.Drafter) -> LLM:
    return LLM.from_model(base.model, base.tokenizer, max_seq_len=length, drafter=drafter)


class _Watch:
    """What the drafter with the automatic budget did, prompt by prompt."""

    def __init__(self, llm: LLM, vocab_size: int) -> None:
        drafter = llm.engine.drafter
        assert isinstance(drafter, _core.HybridDrafter)
        self._drafter = drafter
        self._tenths = [[0, 0.0, 0] for _ in range(10)]
        self.trace: list[dict[str, Any]] = []

    def take(self, prompt: PromptRuns) -> None:
        """After a run: budgets step by step, and predictions against what came true."""
        steps = prompt.runs[f"budget {AUTO}"][-1].step_tokens
        self.trace.append(
            {
                "prompt_set": prompt.prompt_set,
                "id": prompt.prompt_id,
                "budgets": self._drafter.budgets,
                "step_tokens": list(steps),
            }
        )
        for i, (count, total, right) in enumerate(zip(*self._drafter.reliability, strict=True)):
            self._tenths[i][0] += count
            self._tenths[i][1] += total
            self._tenths[i][2] += right

    def reliability(self) -> list[dict[str, float]]:
        """By tenths of predicted probability; those without predictions are left out."""
        return [
            {"predictions": n, "predicted": total / n, "came_true": right / n}
            for n, total, right in self._tenths
            if n > 0
        ]


def _merged(prompts: Sequence[PromptRuns], label: str) -> GenerationStats:
    return GenerationStats.merge([p.median(label) for p in prompts])


def _result(variant: Variant, prompts: Sequence[PromptRuns]) -> dict[str, Any]:
    names = list(dict.fromkeys(p.prompt_set for p in prompts))
    parts = {name: [p for p in prompts if p.prompt_set == name] for name in names}

    def summary(chosen: Sequence[PromptRuns]) -> dict[str, float]:
        stats, plain = _merged(chosen, variant.label), _merged(chosen, PLAIN)
        return {
            "decoding_efficiency": stats.decoding_efficiency,
            "mean_rows": stats.mean_candidate_nodes + stats.mean_draft_nodes,
            "tokens_per_second": stats.tokens_per_second,
            "speedup": stats.speedup(plain),
        }

    return {
        "kind": variant.kind,
        "name": variant.name,
        "total": summary(prompts),
        "sets": {name: summary(chosen) for name, chosen in parts.items()},
    }


def _slowest(prompts: Sequence[PromptRuns]) -> dict[str, Any]:
    """The prompt at which the automatic budget gained least against plain decoding."""
    label = f"budget {AUTO}"

    def gain(prompt: PromptRuns) -> float:
        return ratio(prompt.median(PLAIN).total_time_s, prompt.median(label).total_time_s)

    worst = min(prompts, key=gain)
    return {"prompt_set": worst.prompt_set, "id": worst.prompt_id, "speedup": gain(worst)}


_TITLES = {
    "budget": "hybrid: candidate rows a step",
    "without": "hybrid: each source left out",
    "split": "hybrid: candidate + draft rows",
}


def _tables(results: Mapping[str, Any]) -> list[TitledTable]:
    tables = []
    for kind, title in _TITLES.items():
        of_kind = [v for v in results["variants"] if v["kind"] == kind]
        sets = list(of_kind[0]["sets"])
        columns = (kind, "DE", "rows", "tok/s", "speed-up", *(f"{s} x" for s in sets))
        rows = [
            (
                v["name"],
                f"{v['total']['decoding_efficiency']:.2f}",
                f"{v['total']['mean_rows']:.1f}",
                f"{v['total']['tokens_per_second']:.1f}",
                f"{v['total']['speedup']:.2f}",
                *(f"{v['sets'][s]['speedup']:.2f}" for s in sets),
            )
            for v in of_kind
        ]
        tables.append(make_table(title, columns, rows))
    return tables
