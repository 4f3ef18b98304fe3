"""`ptd-engine verify`: a drafter's output against plain decoding, token for token."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import typer

from ptd_engine.cli import options as opt
from ptd_engine.cli.prompts import PromptItem, collect
from ptd_engine.cli.report import print_table, write_json
from ptd_engine.cli.requests import chat_form, encode
from ptd_engine.config import SamplingParams
from ptd_engine.errors import PTDError
from ptd_engine.metrics import GenerationStats

if TYPE_CHECKING:
    from ptd_engine.llm import LLM
    from ptd_engine.outputs import GenerationOutput

_REPORTED = (
    "decoding_efficiency",
    "hit_rate",
    "accept_length",
    "mean_draft_nodes",
    "mean_candidate_nodes",
)
_GRAPH_COUNTS = ("graph_steps", "graph_captures", "graph_fallbacks")
# Backends whose rows do not depend on how many are computed together.
_ROW_INVARIANT = frozenset({"cpu", "triton"})


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an output leaves plain decoding.

    Attributes:
        id: of the prompt.
        position: index of the first output token that differs, or that only one side has.
        top2_gap: difference of the plain run's two largest logits there (a near-tie explains a
            difference in low precision); None where plain decoding has no token, and at a
            temperature above 0, where the random number decides and not the largest logit.
    """

    id: str
    position: int
    top2_gap: float | None


@dataclass(frozen=True, slots=True)
class _Comparison:
    id: str
    stats: GenerationStats
    divergence: Divergence | None


def verify(
    model: opt.Model,
    prompts: opt.PromptsFiles,
    limit: opt.Limit = None,
    chat: opt.Chat = None,
    max_new_tokens: opt.MaxNewTokens = 128,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    min_p: opt.MinP = None,
    repetition_penalty: opt.RepetitionPenalty = None,
    presence_penalty: opt.PresencePenalty = 0.0,
    frequency_penalty: opt.FrequencyPenalty = 0.0,
    min_new_tokens: opt.MinNewTokens = 0,
    seed: opt.Seed = 0,
    generation_config: opt.GenerationConfig = "auto",
    drafter: opt.Drafter = None,
    width: opt.Width = None,
    depth: opt.Depth = None,
    dtype: opt.Dtype = "auto",
    device: opt.Device = "auto",
    kernels: opt.Kernels = "auto",
    graphs: opt.Graphs = "auto",
    num_threads: opt.NumThreads = None,
    max_seq_len: opt.MaxSeqLen = None,
) -> None:
    """Check that a drafter gives the very tokens of plain decoding.

    Prints a table and, as the last line, one JSON object. The exit status is 1 if an output
    differs or a prompt could not be served.
    """
    items = collect(None, prompts, limit)
    spec = opt.drafter_spec(drafter, width, depth)
    params = SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        min_new_tokens=min_new_tokens,
        seed=seed,
    )
    from ptd_engine.drafters import DrafterConfig, resolve
    from ptd_engine.llm import LLM

    drafted = LLM.from_pretrained(
        model,
        dtype=dtype,
        device=device,
        max_seq_len=max_seq_len,
        drafter=spec,
        kernels=kernels,
        graphs=opt.graphs_mode(graphs),
        num_threads=num_threads,
        generation_config=generation_config,
    )
    as_chat = chat_form(drafted, chat)
    buckets = _plain_buckets(drafted)
    plain = drafted.with_drafter("none", node_buckets=buckets)
    params = drafted.resolve(params)
    done: list[_Comparison] = []
    errors: list[dict[str, str]] = []
    for item in _with_progress(items):
        try:
            ids = encode(drafted, item.text, as_chat=as_chat)
            done.append(_compare(item.id, drafted, plain, ids, params))
        except PTDError as error:
            typer.echo(f"error: {item.id}: {error}", err=True)
            errors.append({"id": item.id, "error": str(error)})
    _print(done)
    stats = GenerationStats.merge([comparison.stats for comparison in done])
    divergences = [asdict(c.divergence) for c in done if c.divergence is not None]
    meant = resolve(spec, drafted.model.device.type)
    write_json(
        {
            "model": model,
            "drafter": opt.drafter_name(drafter, width, depth),
            "drafter_config": asdict(meant) if isinstance(meant, DrafterConfig) else None,
            "dtype": drafted.model.precision,
            "device": str(drafted.model.device),
            "kernels": {choice.op: choice.backend for choice in drafted.model.ops.describe()},
            "temperature": params.temperature,
            "seed": seed,
            "max_new_tokens": max_new_tokens,
            "graphs": {name: getattr(stats, name) for name in _GRAPH_COUNTS},
            "plain_rows": buckets,
            "prompts": len(done),
            "tokens": stats.tokens,
            "mismatches": len(divergences),
            "mismatch_rate": len(divergences) / len(done) if done else 0.0,
            "divergences": divergences,
            "errors": errors,
            **{name: getattr(stats, name) for name in _REPORTED},
        }
    )
    if divergences or errors:
        raise typer.Exit(1)


def _plain_buckets(drafted: LLM) -> list[int] | None:
    """Row counts for plain decoding; None: what it has anyway.

    Where a row's bits depend on how many are computed together (cuBLAS) and steps are padded to
    buckets, plain decoding is padded to the largest one, so that padding alone makes no difference.
    """
    backends = {choice.op: choice.backend for choice in drafted.model.ops.describe()}
    buckets = drafted.engine.runner.node_buckets
    if not buckets or {backends["linear"], backends["tree_attention"]} <= _ROW_INVARIANT:
        return None
    return [max(buckets)]


def _compare(
    name: str, drafted: LLM, plain: LLM, ids: list[int], params: SamplingParams
) -> _Comparison:
    ours, reference = drafted.generate(ids, params), plain.generate(ids, params)
    position = _first_difference(ours, reference)
    if position is None:
        return _Comparison(name, ours.stats, None)
    gap = None
    if params.temperature == 0 and position < len(reference.token_ids):
        # Plain decoding makes one token a step: stopped there, the runner still has its logits.
        least = min(params.min_new_tokens, position + 1)
        plain.generate(ids, replace(params, max_new_tokens=position + 1, min_new_tokens=least))
        gap = _last_gap(plain)
    return _Comparison(name, ours.stats, Divergence(name, position, gap))


def _first_difference(ours: GenerationOutput, reference: GenerationOutput) -> int | None:
    a, b = ours.token_ids, reference.token_ids
    for position, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return position
    if len(a) != len(b) or ours.finish_reason != reference.finish_reason:
        return min(len(a), len(b))
    return None


def _last_gap(plain: LLM) -> float | None:
    from ptd_engine.runner import ModelRunner

    runner = plain.engine.runner
    return runner.top2_gap() if isinstance(runner, ModelRunner) else None


def _with_progress(items: Sequence[PromptItem]) -> Iterator[PromptItem]:
    from rich.console import Console
    from rich.progress import track

    yield from track(
        items,
        description="verifying",
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def _print(done: Sequence[_Comparison]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="Drafted against plain decoding")
    table.add_column("prompt", overflow="fold")
    for column in ("tokens", "steps", "tok/step", "hit rate", "accept length"):
        table.add_column(column, justify="right")
    table.add_column("identical")
    for comparison in done:
        stats, divergence = comparison.stats, comparison.divergence
        table.add_row(
            escape(comparison.id),
            str(stats.tokens),
            str(stats.steps),
            f"{stats.decoding_efficiency:.2f}",
            f"{stats.hit_rate:.2f}",
            f"{stats.accept_length:.2f}",
            "yes" if divergence is None else f"no, at {divergence.position}",
        )
    print_table(table)
