"""Engines over a table of logits, under every kind of drafter, and the oracle they must equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from reference.toy_models import hashed
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ptd_engine import PTDConfig, SamplingParams, _core
from ptd_engine.drafters import make_drafter
from ptd_engine.engine import Engine, Generation, StepTokens
from ptd_engine.testing.forced import FixedBlocks, FixedTrees
from ptd_engine.testing.table import NextLogits, TableRunner

from .conftest import WatchedEngine, check_request

VOCAB, EOS = 24, 2
PROMPT = [5, 9, 11, 3, 9, 11, 3, 9]
CONTEXT = 160


def table_model(vocab: int = VOCAB, seed: int = 0, spread: float = 2.0) -> NextLogits:
    """Random logits for each of 40 kinds of context (its last two tokens and its length)."""
    rows = np.random.default_rng(seed).normal(0, spread, (40, vocab)).astype(np.float32)
    kind = hashed(40, 9, 2)
    return lambda context: rows[kind(context)]


MODEL = table_model()


def engine_over(
    model: NextLogits,
    drafter: _core.Drafter,
    *,
    vocab: int = VOCAB,
    eos: Sequence[int] = (EOS,),
    **options: Any,
) -> WatchedEngine:
    """An engine whose tokens are chosen by the real operations."""
    runner = TableRunner(model, max_seq_len=CONTEXT, vocab_size=vocab, **options)
    return WatchedEngine(runner, drafter, max_seq_len=CONTEXT, vocab_size=vocab, eos_token_ids=eos)


def run(engine: Engine, params: SamplingParams, prompt: Sequence[int] = PROMPT) -> Generation:
    """To the end, with what holds after every step."""
    return run_steps(engine, params, prompt)[0]


def run_steps(
    engine: Engine, params: SamplingParams, prompt: Sequence[int] = PROMPT
) -> tuple[Generation, list[StepTokens]]:
    """The same, and the steps."""
    generation = engine.generate(prompt, params)
    steps = []
    for step in generation:
        steps.append(step)
        check_request(generation, len(prompt))
    return generation, steps


def random_trees(seed: int, vocab: int = VOCAB) -> FixedTrees:
    """Trees of random tokens, most of them wrong, some of them siblings that are alike."""
    rng = np.random.default_rng(seed)
    trees = []
    for _ in range(40):
        size = int(rng.integers(1, 70))
        trees.append(
            [(int(rng.integers(vocab)), int(rng.integers(-1, row))) for row in range(size)]
        )
    return FixedTrees(*trees)


def drafters(output: Sequence[int], vocab: int = VOCAB) -> dict[str, _core.Drafter]:
    """By name; those that force blocks know the output."""
    ptd = PTDConfig(width=3, depth=4, recycle_verified=True)
    return {
        "none": make_drafter("none", device_type="cpu"),
        "paper": make_drafter(PTDConfig(), device_type="cpu"),
        "recycling": make_drafter(ptd, device_type="cpu"),
        "blocks": FixedBlocks(output, (0, 2, 5, 1), decoys=[0, 1]),
        "everything": FixedBlocks(output, (60,)),
        "random": random_trees(1, vocab),
    }


def oracle(
    model: NextLogits,
    params: SamplingParams,
    prompt: Sequence[int] = PROMPT,
    eos: Sequence[int] = (EOS,),
    logits_processor: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> list[int]:
    """Plain decoding with transformers' own processors; presence and frequency by definition."""
    p = params.resolved()
    stops = [*eos, *p.stop_token_ids]
    before: list[Any] = []
    if p.logit_bias:
        bias = {(token,): float(value) for token, value in p.logit_bias.items()}
        before.append(SequenceBiasLogitsProcessor(bias))
    if p.repetition_penalty != 1:
        before.append(RepetitionPenaltyLogitsProcessor(p.repetition_penalty))
    behind: list[Any] = []
    if p.min_new_tokens:
        behind.append(MinNewTokensLengthLogitsProcessor(len(prompt), p.min_new_tokens, stops))
    if logits_processor is not None:
        behind.append(logits_processor)
    if p.temperature:
        behind.append(TemperatureLogitsWarper(float(p.temperature)))
        behind += [TopKLogitsWarper(p.top_k)] if p.top_k else []
        behind += [TopPLogitsWarper(p.top_p)] if p.top_p < 1 else []
        behind += [MinPLogitsWarper(p.min_p)] if p.min_p else []
    ids = list(prompt)
    assert p.max_new_tokens is not None
    while len(ids) - len(prompt) < p.max_new_tokens:
        given = torch.tensor([ids])
        scores = torch.tensor(np.array([model(ids)], np.float32))
        scores = LogitsProcessorList(before)(given, scores)
        for token in set(ids[len(prompt) :]):
            times = ids[len(prompt) :].count(token)
            scores[0, token] -= p.presence_penalty + p.frequency_penalty * times
        scores = LogitsProcessorList(behind)(given, scores)
        if p.temperature:
            mass = scores[0].double().softmax(-1).cumsum(-1)
            uniform = _core.philox_uniform(p.seed, len(ids) - 1)
            ids.append(int((mass <= uniform * mass[-1]).sum()))
        else:
            ids.append(int(scores[0].argmax()))
        if ids[-1] in stops:
            break
    return ids[len(prompt) :]
