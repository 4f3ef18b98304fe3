"""This engine against transformers and llama.cpp, on the same weights, prompts and threads.

All take turns prompt by prompt, so that a change of the machine's load meets all of them. Drafting
must give what our plain decoding gives. A peer rounds in its own way, so its output may leave ours
at a near-tie: how many leading tokens agree is shown, and each first difference is listed. A peer
whose first differing tokens are mostly not among our ten most likely has another model: no speed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bench.agreement import PLAIN, Difference, Prompt, find_differences
from bench.common import (
    add_model_arguments,
    add_prompt_arguments,
    model_settings,
    positive,
    ratio,
)
from bench.contestants import Contestant, Ours, Timed, Transformers
from bench.llama_client import LlamaCpp
from bench.prompt_sets import load_sets
from bench.quality import TEXT
from bench.report import Document, make_table
from ptd_engine import hub
from ptd_engine.checkpoint import open_checkpoint
from ptd_engine.cli.requests import chat_form, encode
from ptd_engine.errors import ConfigError, PromptError
from ptd_engine.llm import LLM
from ptd_engine.model import CausalLM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    add_model_arguments(parser)
    add_prompt_arguments(parser)
    parser.add_argument(
        "--prefill-tokens",
        type=positive,
        default=512,
        metavar="N",
        help="length of the prompt whose prefill is timed (default: 512)",
    )
    parser.add_argument(
        "--drafter",
        default="hybrid",
        metavar="NAME[:OPTION=VALUE,...]",
        help="of this engine, beside plain decoding (default: hybrid)",
    )
    parser.add_argument(
        "--without-transformers", action="store_true", help="leave transformers out"
    )
    parser.add_argument(
        "--llama-python",
        type=Path,
        metavar="PATH",
        help="a Python interpreter that can import llama_cpp: llama.cpp takes part",
    )
    parser.add_argument(
        "--llama-gguf", type=Path, metavar="FILE", help="the model for llama.cpp: the same weights"
    )


def run(args: argparse.Namespace) -> Document:
    """Measure. Raises PTDError for arguments that cannot be served."""
    if (args.llama_python is None) != (args.llama_gguf is None):
        raise ConfigError("--llama-python and --llama-gguf belong together: give both or neither.")
    if args.threads is not None:
        torch.set_num_threads(args.threads)  # transformers has no setting of its own
    sets = load_sets(args)
    base = LLM.from_pretrained(
        args.model,
        dtype=args.dtype,
        device=args.device,
        kernels=args.kernels,
        num_threads=args.threads,
        drafter="none",
    )
    model, limit = base.model, base.engine.max_seq_len
    if args.llama_python is not None and model.device.type != "cpu":
        raise ConfigError.for_field(
            "--device", str(model.device), "cpu", "llama.cpp takes part on a CPU only."
        )
    if args.prefill_tokens >= limit:
        raise ConfigError.for_field(
            "--prefill-tokens", args.prefill_tokens, f"at most {limit - 1} with this model"
        )
    as_chat = chat_form(base, False if args.raw else None)
    encoded = [(s.name, i.id, encode(base, i.text, as_chat=as_chat)) for s in sets for i in s.items]
    for _, _, ids in encoded:
        base.engine.check_prompt(ids)
    prompts = [
        Prompt(name, item, ids, min(args.max_new_tokens, limit - len(ids)), {})
        for name, item, ids in encoded
    ]
    needed = max(len(p.token_ids) + p.max_new_tokens for p in prompts)
    length = max(needed, args.prefill_tokens + 1)
    stop_ids = base.engine.eos_token_ids
    plain = LLM.from_model(model, base.tokenizer, max_seq_len=length, drafter="none")
    drafted = LLM.from_model(model, base.tokenizer, max_seq_len=length, drafter=args.drafter)
    field: dict[str, Contestant] = {
        PLAIN: Ours(plain, model.precision),
        args.drafter: Ours(drafted, model.precision),
    }
    with ExitStack() as stack:
        if not args.without_transformers:
            checkpoint = open_checkpoint(hub.resolve_model(args.model))
            peer_model = Transformers(
                checkpoint, model.dtype, model.device, stop_ids, base.tokenizer.vocab_size
            )
            field["transformers"] = peer_model
            field["transformers, prompt lookup"] = peer_model.with_prompt_lookup()
        if args.llama_python is not None:
            peer = LlamaCpp(
                args.llama_python,
                args.llama_gguf,
                context=length,
                threads=torch.get_num_threads(),
                stop_ids=stop_ids,
            )
            field["llama.cpp"] = stack.enter_context(peer)
        measure(field, prompts, args.repeats)
        prefill = measure_prefill(field, _prefill_ids(base, args.prefill_tokens), args.repeats)
    settings = {
        **model_settings(args, model),
        "weight_bytes": model.weight_bytes,
        "prompt_sets": [{"name": s.name, "prompts": len(s.items)} for s in sets],
        "chat_template": as_chat,
        "max_new_tokens": args.max_new_tokens,
        "prefill_tokens": args.prefill_tokens,
        "max_seq_len": length,
        "repeats": args.repeats,
        "engines": {name: {"dtype": c.dtype, **c.details} for name, c in field.items()},
    }
    return _document(settings, field, prompts, prefill, model)


def measure(field: Mapping[str, Contestant], prompts: Sequence[Prompt], repeats: int) -> None:
    """Run every contestant on every prompt `repeats` times, in turns, into `prompts[...].runs`."""
    names = list(field)
    for name in names:  # warm-up: libraries prepare a kernel for each new shape
        field[name].generate(prompts[0].token_ids, prompts[0].max_new_tokens)
    for repeat in range(repeats):
        for index, prompt in enumerate(prompts):
            for name in _turn(names, repeat + index):  # another order in every repeat
                timed = field[name].generate(prompt.token_ids, prompt.max_new_tokens)
                prompt.runs.setdefault(name, []).append(timed)


def measure_prefill(
    field: Mapping[str, Contestant], token_ids: list[int], repeats: int
) -> dict[str, float]:
    """Median seconds from a prompt to its first token. Drafting has no part in it, so no entry."""
    names = [name for name, contestant in field.items() if not contestant.drafts]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats + 1):
        for name in _turn(names, turn):  # the first turn is warm-up
            seconds[name].append(field[name].generate(token_ids, 1).first_s)
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def summarise(
    name: str,
    dtype: str,
    prompts: Sequence[Prompt],
    differences: Sequence[Difference],
    prefill_s: float | None,
    *,
    ours: bool,
) -> dict[str, Any]:
    """One contestant on all prompts: agreement, and speed if its output is right.

    Right are our plain decoding if it repeats itself, drafting if it equals it on every prompt, and
    a peer if at least half of its first differences are plausible.
    """
    equal = sum(p.equal(name) for p in prompts)
    leading = [p.leading(name) for p in prompts]
    own = [d for d in differences if d.engine == name]
    right = not own or (not ours and 2 * sum(d.is_plausible for d in own) >= len(own))
    summary: dict[str, Any] = {
        "engine": name,
        "dtype": dtype,
        "right": right,
        "equal_outputs": equal,
        "leading_tokens": sum(leading),
        "leading_share": ratio(sum(leading), sum(len(p.expected) for p in prompts)),
    }
    if not right:
        return summary
    runs = [p.median(name) for p in prompts]
    speed = Timed.merge_speed(runs)
    return summary | {
        "tokens": sum(len(run.token_ids) for run in runs),
        "decode_tokens_per_second": speed,
        "of_plain": ratio(speed, Timed.merge_speed([p.median(PLAIN) for p in prompts])),
        "time_to_first_token_ms": 1e3 * statistics.fmean(run.first_s for run in runs),
        "prefill_s": prefill_s,
    }


def _document(
    settings: dict[str, Any],
    field: Mapping[str, Contestant],
    prompts: Sequence[Prompt],
    prefill: Mapping[str, float],
    model: CausalLM,
) -> Document:
    differences = [d for name in field for d in find_differences(name, prompts, model)]
    engines = [
        summarise(name, c.dtype, prompts, differences, prefill.get(name), ours=isinstance(c, Ours))
        for name, c in field.items()
    ]
    if not engines[0]["right"]:  # nothing to compare with: no speed means anything
        shown = ("engine", "dtype", "equal_outputs", "leading_tokens", "leading_share")
        engines = [{"right": False} | {key: e[key] for key in shown} for e in engines]
    right = [e["engine"] for e in engines if e["right"]]
    per_prompt = [
        {
            "prompt_set": p.prompt_set,
            "id": p.prompt_id,
            "prompt_tokens": len(p.token_ids),
            "tokens": {name: len(p.runs[name][0].token_ids) for name in field},
            "leading_tokens": {name: p.leading(name) for name in field},
            "first_s": {name: p.median(name).first_s for name in right},
            "total_s": {name: p.median(name).total_s for name in right},
        }
        for p in prompts
    ]
    return Document(
        "compare",
        correct=len(right) == len(engines),
        settings=settings,
        results={
            "engines": engines,
            "prompts": per_prompt,
            "differences": [asdict(d) for d in differences],
        },
        tables=[
            make_table(
                _title(settings),
                _columns(settings),
                [_table_row(e, len(prompts)) for e in engines],
                text_columns=2,
            )
        ],
        notes=[str(d) for d in differences],
        device=model.device,
    )


def _title(settings: Mapping[str, Any]) -> str:
    return (
        f"compare: {settings['model']}, {settings['device']}, greedy, at most "
        f"{settings['max_new_tokens']} tokens, {settings['threads']} threads, median of "
        f"{settings['repeats']} (tok/s: after the first step; agreement: with our plain decoding)"
    )


def _columns(settings: Mapping[str, Any]) -> Sequence[str]:
    prefill = f"prefill of {settings['prefill_tokens']}, s"
    return (
        *("engine", "weights", "tok/s", "of plain", "first token, ms", prefill),
        *("equal outputs", "leading tokens that agree"),
    )


def _table_row(entry: Mapping[str, Any], prompts: int) -> list[str]:
    agreement = [f"{entry['equal_outputs']}/{prompts}", f"{100 * entry['leading_share']:.1f}%"]
    if not entry["right"]:
        return [entry["engine"], entry["dtype"], "differs", "", "", "", *agreement]
    prefill = entry["prefill_s"]
    return [
        entry["engine"],
        entry["dtype"],
        f"{entry['decode_tokens_per_second']:.1f}",
        f"{entry['of_plain']:.2f}",
        f"{entry['time_to_first_token_ms']:.1f}",
        "" if prefill is None else f"{prefill:.3f}",
        *agreement,
    ]


def _turn(names: Sequence[str], turn: int) -> list[str]:
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def _prefill_ids(llm: LLM, count: int) -> list[int]:
    """The first `count` tokens of the benchmarks' text, from its beginning again if it ends."""
    ids = llm.encode(TEXT.read_text(encoding="utf-8"))
    if not ids:
        raise PromptError("The tokenizer makes no token of the benchmarks' text.")
    return [ids[index % len(ids)] for index in range(count)]
