"""Decode here as a drafter would elsewhere: its steps are costed as predicted for a GPU.

The model is a small one on this machine, and so are its answers; the drafter is told the step times
predicted for a large model on a GPU and sizes its trees by them. What comes out are the rows that a
run asks for there, tokens a step, and a predicted speed: no time here is a measurement.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from bench.acceptance import HOST_TIMES, PLAIN, HostTimes, load_host_times
from bench.bucket_choice import histogram
from bench.common import (
    add_model_arguments,
    add_prompt_arguments,
    choose_drafters,
    load_plain,
    model_settings,
    ratio,
)
from bench.gpus import GPUS
from bench.model_shapes import SHAPES, load_shape
from bench.prompt_sets import load_sets
from bench.report import Document, make_table
from bench.simulate import add_device_arguments
from bench.simulate_predict import replaced, step_model
from bench.step_model import StepModel
from ptd_engine.cli.requests import chat_form, encode
from ptd_engine.config import MAX_TREE_NODES, SamplingParams
from ptd_engine.llm import LLM
from ptd_engine.runner import StepTimes
from ptd_engine.runner.buckets import NODE_EDGES, bucket_of, default_node_buckets

_FAR = 8192  # of the prefix, where the cost of its tokens is taken from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    add_model_arguments(parser)
    add_prompt_arguments(parser)
    parser.add_argument("--drafter", default="hybrid", metavar="NAME[:OPTION=VALUE,...]")
    parser.add_argument("--gpu", choices=GPUS, default="h200")
    parser.add_argument(
        "--shape", default="llama-3.1-8b", metavar="NAME", help=f"{', '.join(SHAPES)} or a config"
    )
    parser.add_argument("--weights", default="bfloat16", help="their dtype on the GPU")
    parser.add_argument("--host-times", default=HOST_TIMES, metavar="FILE", help="of bookkeeping")
    add_device_arguments(parser)


def run(args: argparse.Namespace) -> Document:
    """Decode and count. Raises PTDError for arguments that cannot be served."""
    device = replaced(GPUS[args.gpu], args.set)
    host = load_host_times(args.host_times)
    model = step_model(device, load_shape(args.shape), args.weights, 1, graphs=True)
    base = load_plain(args)
    choice = choose_drafters([args.drafter], base.model.device.type)[0]
    as_chat = chat_form(base, False if args.raw else None)
    sets = load_sets(args)
    prompts = [encode(base, item.text, as_chat=as_chat) for s in sets for item in s.items]
    longest = max(map(len, prompts)) + args.max_new_tokens
    llm = LLM.from_model(
        base.model,
        base.tokenizer,
        max_seq_len=min(longest, base.engine.max_seq_len),
        drafter=choice.spec,
        step_times=predicted_times(model),
    )
    counted = _decode(llm, prompts, args.max_new_tokens, choice.label, model, host)
    settings = {
        **model_settings(args, base.model),
        "gpu": asdict(device),
        "shape": args.shape,
        "weights": args.weights,
        "drafter": choice.label,
        "prompt_sets": [{"name": s.name, "prompts": len(s.items)} for s in sets],
        "max_new_tokens": args.max_new_tokens,
    }
    return Document(
        "rows_asked",
        correct=True,
        settings=settings,
        results={"prediction": True, **counted},
        tables=[
            make_table(
                f"PREDICTION for {args.shape} on {device.name} with the answers of {args.model}",
                ("drafter", "tokens a step", "mean rows", "tokens/s", "speed-up"),
                [
                    (
                        choice.label,
                        f"{counted['tokens_a_step']:.2f}",
                        f"{counted['mean_rows']:.1f}",
                        f"{counted['tokens_per_second']:.0f}",
                        f"{counted['speedup']:.2f}",
                    )
                ],
            )
        ],
        device=base.model.device,
    )


def predicted_times(model: StepModel) -> StepTimes:
    """What the engine would measure on that GPU at its start, padding included."""
    near = [model.time(rows, 0).total for rows in NODE_EDGES]
    far = [model.time(rows, _FAR).total for rows in NODE_EDGES]
    slopes = tuple((b - a) / _FAR for a, b in zip(near, far, strict=True))
    return StepTimes(NODE_EDGES, tuple(near), slopes, MAX_TREE_NODES)


def _decode(
    llm: LLM, prompts: list[list[int]], most: int, label: str, model: StepModel, host: HostTimes
) -> dict[str, Any]:
    buckets = default_node_buckets(llm.engine.runner.max_nodes)
    rows_asked: list[int] = []
    seconds = plain_seconds = 0.0
    tokens = 0
    for prompt in prompts:
        generation = llm.engine.generate(prompt, SamplingParams(max_new_tokens=most))
        prefix = len(prompt) - 1
        for step in generation:
            tree = generation.tree
            assert tree is not None  # there was a step
            rows = len(tree.token_ids)
            rows_asked.append(rows)
            seconds += model.time(bucket_of(buckets, rows), prefix, host.us(label, rows)).total
            prefix += len(step.token_ids)
        output = len(generation.token_ids)
        tokens += output
        for done in range(output):
            plain_seconds += model.time(1, len(prompt) - 1 + done, host.us(PLAIN, 1)).total
    steps = len(rows_asked)
    return {
        "steps": steps,
        "tokens": tokens,
        "tokens_a_step": ratio(tokens, steps),
        "mean_rows": ratio(sum(rows_asked), steps),
        "rows": histogram(rows_asked),
        "tokens_per_second": ratio(tokens, seconds),
        "plain_tokens_per_second": ratio(tokens, plain_seconds),
        "speedup": ratio(plain_seconds, seconds),
    }
