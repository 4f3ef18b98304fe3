"""Log-probabilities of the output: whose they are, how many, and in which order."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from ptd_engine import ConfigError, SamplingParams
from ptd_engine.outputs import TokenLogprobs

from .conftest import llm_of, tokenizer_of
from .logit_tables import MODEL, PROMPT, VOCAB, drafters, engine_over, run, run_steps

FULL: dict[str, Any] = {
    "temperature": 0.7,
    "top_k": 9,
    "seed": 3,
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.5,
    "logit_bias": {4: 2.0},
    "min_new_tokens": 20,
}


def check(
    found: list[TokenLogprobs], output: list[int], k: int, prompt: list[int] = PROMPT
) -> None:
    """Against log_softmax of the model's own logits, position for position."""
    assert [entry.token_id for entry in found] == output
    for at, entry in enumerate(found):
        row = torch.tensor(np.array(MODEL([*prompt, *output[:at]])))
        expected = row.double().log_softmax(-1)
        assert entry.logprob == pytest.approx(expected[entry.token_id].item(), abs=1e-5)
        best = row.sort(descending=True, stable=True).indices[:k].tolist()
        assert [token for token, _ in entry.top] == best
        for token, value in entry.top:
            assert value == pytest.approx(expected[token].item(), abs=1e-5)


@pytest.mark.parametrize("kernels", ["torch", "cpu"])
@pytest.mark.parametrize("k", [0, 3, VOCAB])
@pytest.mark.parametrize("settings", [{}, FULL], ids=["greedy", "processed"])
def test_accepted_and_own_tokens_alike_have_the_models_logprobs(
    settings: dict[str, Any], k: int, kernels: str
) -> None:
    params = SamplingParams(max_new_tokens=40, logprobs=k, **settings)
    none = drafters([])["none"]
    plain = run(engine_over(MODEL, none), SamplingParams(max_new_tokens=40, **settings))
    for name, drafter in drafters(plain.token_ids).items():
        generation, steps = run_steps(engine_over(MODEL, drafter, kernels=kernels), params)
        assert generation.token_ids == plain.token_ids
        for step in steps:
            assert step.logprobs is not None and len(step.logprobs) == len(step.token_ids)
        if name == "blocks":
            assert max(len(step.token_ids) for step in steps) == 6
        check([e for step in steps for e in step.logprobs or ()], generation.token_ids, k)


def test_none_are_made_unless_asked_for() -> None:
    steps = run_steps(engine_over(MODEL, drafters([])["paper"]), SamplingParams(max_new_tokens=5))[
        1
    ]
    assert [step.logprobs for step in steps] == [None] * len(steps)


@pytest.mark.parametrize("kernels", ["torch", "cpu"])
def test_equal_logits_are_listed_by_id(kernels: str) -> None:
    row = [0.0, 1.0, -0.0, 1.0, 0.0, 1.0, -3.0, -math.inf]
    engine = engine_over(lambda context: row, drafters([])["none"], vocab=8, kernels=kernels)
    steps = run_steps(engine, SamplingParams(max_new_tokens=1, logprobs=8), [1])[1]
    (entry,) = steps[0].logprobs or ()
    assert [token for token, _ in entry.top] == [1, 3, 5, 0, 2, 4, 6, 7]
    assert (entry.token_id, entry.top[7][1]) == (1, -math.inf)
    text = json.dumps(entry.as_dict(), allow_nan=False)
    assert json.loads(text)["top"][7] == {"token_id": 7, "logprob": None}


def test_a_token_that_only_a_bias_made_possible_has_its_own_logprob() -> None:
    params = SamplingParams(max_new_tokens=1, logprobs=0, logit_bias={6: 50.0})
    steps = run_steps(engine_over(MODEL, drafters([])["none"]), params)[1]
    (entry,) = steps[0].logprobs or ()
    assert entry.token_id == 6 and entry.logprob < -0.5
    check([entry], [6], 0)


@pytest.mark.parametrize("end", [0, 3, 7, 8, None])
def test_one_entry_a_token_wherever_the_output_ends(end: int | None) -> None:
    pieces = [*"abcdefghijklmnopqrstu"]
    params = SamplingParams(max_new_tokens=12, logprobs=2)
    output = run(engine_over(MODEL, drafters([])["none"], eos=()), params).token_ids
    for drafter in drafters(output).values():
        stop = () if end is None else (output[end],)
        llm = llm_of(engine_over(MODEL, drafter, eos=stop), tokenizer_of(pieces))
        chunks = list(llm.stream(PROMPT, params))
        answer = chunks[-1].output
        assert answer is not None and answer.logprobs is not None
        wanted = output if end is None else output[: output.index(output[end]) + 1]
        assert answer.token_ids == wanted
        assert len(answer.logprobs) == len(wanted) == answer.usage.completion_tokens
        assert [e for chunk in chunks for e in chunk.logprobs or ()] == answer.logprobs
        check(answer.logprobs, wanted, 2)
        assert llm.generate(PROMPT, SamplingParams(max_new_tokens=3)).logprobs is None
        assert llm.generate(PROMPT, SamplingParams(max_new_tokens=0, logprobs=1)).logprobs == []


def test_more_than_the_vocabulary_is_refused() -> None:
    engine = engine_over(MODEL, drafters([])["none"])
    with pytest.raises(ConfigError, match=f"logprobs={VOCAB + 1}.*at most {VOCAB}"):
        engine.generate(PROMPT, SamplingParams(logprobs=VOCAB + 1))
    with pytest.raises(ConfigError, match="logprobs=2.*recursive"):
        SamplingParams(logprobs=2, verification="recursive")


@pytest.mark.parametrize("end", [1, 4, 6])
def test_a_stop_string_inside_a_block_ends_ids_and_logprobs_with_its_token(end: int) -> None:
    pieces = [*"abcdefghijklmnopqrstu"]
    free = SamplingParams(max_new_tokens=12, ignore_eos=True)
    output = run(engine_over(MODEL, drafters([])["none"]), free).token_ids
    stop = "".join(pieces[token - 3] for token in output[end - 1 : end + 1])
    for name, drafter in drafters(output).items():
        llm = llm_of(engine_over(MODEL, drafter, eos=()), tokenizer_of(pieces))
        answer = llm.generate(
            PROMPT, SamplingParams(max_new_tokens=12, stop=stop, logprobs=2, ignore_eos=True)
        )
        assert answer.text == "".join(pieces[token - 3] for token in output[: end - 1])
        assert answer.finish_reason == "stop" and answer.logprobs is not None
        assert answer.token_ids == output[: end + 1]
        assert len(answer.logprobs) == answer.usage.completion_tokens == end + 1
        check(answer.logprobs, output[: end + 1], 2)
        if name == "everything":
            assert answer.stats.steps == 1
