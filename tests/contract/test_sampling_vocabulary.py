"""Ids that stand for no token: never chosen, listed or drawn, whatever their logits are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptd_engine import ConfigError, PromptError, SamplingParams, _core
from ptd_engine.testing.forced import FixedTrees

from .logit_tables import MODEL, PROMPT, VOCAB, drafters, engine_over, oracle, run, run_steps

PADDING = 9
LAWS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.5, "seed": 4},
    "filtered": {"temperature": 1.5, "top_k": 6, "top_p": 0.9, "min_p": 0.02},
    "penalised": {"repetition_penalty": 1.3, "presence_penalty": -1.0, "min_new_tokens": 9},
    "own function": {"logits_processor": lambda ids, logits: logits * 1.0},
}


@pytest.mark.parametrize("kernels", ["torch", "cpu"])
@pytest.mark.parametrize("tail", [50.0, float("inf"), float("nan"), -float("inf")])
@pytest.mark.parametrize("law", LAWS)
def test_padding_has_no_part_in_anything(law: str, tail: float, kernels: str) -> None:
    def padded(context: list[int]) -> Any:
        return np.concatenate([MODEL(context), np.full(PADDING, tail, np.float32)])

    params = SamplingParams(max_new_tokens=25, logprobs=VOCAB, **LAWS[law])
    without = SamplingParams(max_new_tokens=25, **LAWS[law])
    expected = run(engine_over(MODEL, drafters([])["none"]), without).token_ids
    for name in ("none", "recycling", "blocks"):
        drafter = drafters(expected)[name]
        engine = engine_over(padded, drafter, padding=PADDING, kernels=kernels)
        generation, steps = run_steps(engine, params)
        assert generation.token_ids == expected
        for entry in (e for step in steps for e in step.logprobs or ()):
            assert sorted(token for token, _ in entry.top) == list(range(VOCAB))
            assert sum(np.exp([value for _, value in entry.top])) == pytest.approx(1.0, abs=1e-5)


def test_algorithm_2_knows_the_limit_too() -> None:
    def padded(context: list[int]) -> Any:
        return np.concatenate([MODEL(context), np.full(PADDING, 50.0, np.float32)])

    params = SamplingParams(max_new_tokens=25, verification="recursive")
    engine = engine_over(padded, drafters([])["paper"], padding=PADDING)
    assert run(engine, params).token_ids == oracle(MODEL, params)


def test_such_an_id_is_refused_from_prompts_drafters_and_biases() -> None:
    engine = engine_over(MODEL, FixedTrees([(VOCAB, -1)]))
    with pytest.raises(PromptError, match=rf"prompt\[1\]={VOCAB}.*0 to {VOCAB - 1}"):
        engine.generate([3, VOCAB], SamplingParams())
    with pytest.raises(ConfigError, match=rf"logit_bias={VOCAB}.*0 to {VOCAB - 1}"):
        engine.generate(PROMPT, SamplingParams(logit_bias={VOCAB: 1.0}))
    with pytest.raises(_core.InvalidArgument, match=f"token={VOCAB}.*0 to {VOCAB - 1}"):
        run(engine, SamplingParams())
    # An id the model can never choose would silently never stop anything.
    with pytest.raises(ConfigError, match=rf"stop_token_ids={VOCAB}.*0 to {VOCAB - 1}"):
        engine.generate(PROMPT, SamplingParams(stop_token_ids=[VOCAB]))
