"""Logits that are not finite, before or after processing, fail their request and name the step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptd_engine import EngineError, SamplingParams
from ptd_engine.testing.forced import FixedBlocks

from .logit_tables import EOS, MODEL, PROMPT, VOCAB, drafters, engine_over, oracle, run

NAN, INF = float("nan"), float("inf")
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0},
    "filtered": {"temperature": 1.0, "top_k": 5, "top_p": 0.9},
    "penalised": {"repetition_penalty": 1.2, "frequency_penalty": 0.1},
    "biased away": {"logit_bias": dict.fromkeys(range(VOCAB - 1), -INF)},
    "least length": {"min_new_tokens": 9, "stop_token_ids": [EOS]},
    "with logprobs": {"logprobs": 3},
    "own function": {"logits_processor": lambda ids, logits: logits},
}


@pytest.mark.parametrize("kernels", ["torch", "cpu"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("place", [0, EOS, VOCAB - 1])
def test_one_bad_logit_fails_the_request_and_nothing_else(
    place: int, bad: float, kind: str, kernels: str
) -> None:
    params = SamplingParams(max_new_tokens=9, ignore_eos=True, **KINDS[kind])

    def spoiled(context: list[int]) -> Any:
        row = np.array(MODEL(context))
        if len(context) == len(PROMPT) + 4 and armed:
            row[place] = bad
        return row

    for name in ("none", "blocks"):
        armed = False
        engine = engine_over(spoiled, drafters([])[name], kernels=kernels)
        whole = run(engine, params).token_ids
        drafter = drafters(whole)[name]
        assert isinstance(drafter, FixedBlocks) or name == "none"
        engine = engine_over(spoiled, drafter, kernels=kernels)
        armed = True
        generation = engine.generate(PROMPT, params)
        with pytest.raises(EngineError, match=r"step \d+: .*not finite"):
            list(generation)
        assert generation.token_ids == whole[: len(generation.token_ids)]
        assert len(generation.token_ids) <= 4
        armed = False
        assert run(engine, params).token_ids == whole


def test_a_bad_logit_of_a_rejected_draft_harms_nothing() -> None:
    def spoiled(context: list[int]) -> Any:
        row = np.array(MODEL(context))
        return np.full_like(row, NAN) if context[-1] == 1 else row

    params = SamplingParams(max_new_tokens=30, logit_bias={1: -INF}, logprobs=1)
    expected = oracle(MODEL, SamplingParams(max_new_tokens=30, logit_bias={1: -100.0}))
    engine = engine_over(spoiled, FixedBlocks(expected, (3, 1), decoys=[1]))
    assert run(engine, params).token_ids == expected


@pytest.mark.parametrize("kernels", ["torch", "cpu"])
@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_a_request_that_rules_out_every_token_is_told_so(heat: float, kernels: str) -> None:
    nothing = SamplingParams(logit_bias=dict.fromkeys(range(VOCAB), -INF), temperature=heat)
    every_id_ends = SamplingParams(
        min_new_tokens=1, stop_token_ids=list(range(VOCAB)), temperature=heat
    )
    engine = engine_over(MODEL, drafters([])["paper"], kernels=kernels)
    for params in (nothing, every_id_ends):
        with pytest.raises(EngineError, match="step 0.*logit_bias.*min_new_tokens.*every token"):
            run(engine, params)
    allowed = SamplingParams(max_new_tokens=3, logit_bias=dict.fromkeys(range(1, VOCAB), -INF))
    assert run(engine, allowed).token_ids == [0, 0, 0]
