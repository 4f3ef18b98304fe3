"""Biases, penalties and least lengths against transformers' processors, whatever is drafted."""

from __future__ import annotations

from typing import Any

import pytest
from reference.toy_models import hashed

from ptd_engine import SamplingParams

from .logit_tables import EOS, MODEL, VOCAB, drafters, engine_over, oracle, run, table_model

SETTINGS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.3},
    "encouraged repetition": {"repetition_penalty": 0.7},
    "presence": {"presence_penalty": 1.5},
    "negative presence": {"presence_penalty": -0.8},
    "frequency": {"frequency_penalty": 0.6},
    "bias": {"logit_bias": {4: 3.0, 7: -2.5, EOS: -100}},
    "least length": {"min_new_tokens": 30},
    "least length of stop ids": {"min_new_tokens": 25, "stop_token_ids": [4, 7, 8]},
    "all": {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "logit_bias": {4: 1.0, 9: 2.0, 11: -float("inf")},
        "min_new_tokens": 20,
        "stop_token_ids": [6],
    },
}
LAWS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "seed": 5},
    "filtered": {"temperature": 1.1, "top_k": 12, "top_p": 0.9, "min_p": 0.03, "seed": 6},
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_drafter_gives_what_transformers_processors_give(setting: str, law: str) -> None:
    params = SamplingParams(max_new_tokens=50, **SETTINGS[setting], **LAWS[law])
    expected = oracle(MODEL, params)
    for name, drafter in drafters(expected).items():
        for kernels in ("torch", "cpu") if name in ("none", "recycling") else ("torch",):
            generation = run(engine_over(MODEL, drafter, kernels=kernels), params)
            assert generation.token_ids == expected, (name, kernels)
            if name == "everything":  # the last block may end on a candidate
                assert generation.stats.steps <= 2


def test_the_settings_above_are_felt() -> None:
    plain = oracle(MODEL, SamplingParams(max_new_tokens=50))
    for name, settings in SETTINGS.items():
        assert oracle(MODEL, SamplingParams(max_new_tokens=50, **settings)) != plain, name


def test_a_token_is_counted_once_where_it_is_pending_and_where_it_is_accepted() -> None:
    # Each time that a token is in the output it loses 1.
    def next_logits(context: list[int]) -> list[float]:
        return [0.0, 0.0, 0.0, 2.5, 0.9, 0.8]

    params = SamplingParams(max_new_tokens=6, frequency_penalty=1.0)
    expected = [3, 3, 4, 5, 3, 0]  # at 2.5, 1.5, 0.9, 0.8, 0.5, 0
    assert oracle(next_logits, params, [3, 4], ()) == expected
    for drafter in drafters(expected, 6).values():
        engine = engine_over(next_logits, drafter, vocab=6, eos=())
        assert run(engine, params, [3, 4]).token_ids == expected


def test_presence_and_frequency_leave_the_prompt_out_and_repetition_does_not() -> None:
    def next_logits(context: list[int]) -> list[float]:
        return [0.0, 1.0, 0.9, -0.5]

    def first(**settings: Any) -> int:
        engine = engine_over(next_logits, drafters([])["none"], vocab=4, eos=())
        return run(engine, SamplingParams(max_new_tokens=1, **settings), [1, 1, 1]).token_ids[0]

    assert first(presence_penalty=2.0) == first(frequency_penalty=2.0) == 1
    assert first(repetition_penalty=1.2) == 2
    # The last token of the prompt alone counts as much as an earlier one.
    engine = engine_over(next_logits, drafters([])["none"], vocab=4, eos=())
    last = SamplingParams(max_new_tokens=1, repetition_penalty=1.2)
    assert run(engine, last, [0, 1]).token_ids == [2]


@pytest.mark.parametrize("recursive_seed", range(3))
def test_algorithm_2_is_given_the_processed_law(recursive_seed: int) -> None:
    # With one token left to each row the law is that token, whatever numbers are drawn.
    params = SamplingParams(
        max_new_tokens=40,
        temperature=1.0,
        top_k=1,
        seed=recursive_seed,
        verification="recursive",
        **SETTINGS["all"],
    )
    greedy = SamplingParams(max_new_tokens=40, **SETTINGS["all"])
    expected = oracle(MODEL, greedy)
    for drafter in drafters(expected).values():
        assert run(engine_over(MODEL, drafter), params).token_ids == expected


def test_a_request_leaves_nothing_to_the_next() -> None:
    plain, penalised = (
        SamplingParams(max_new_tokens=40),
        SamplingParams(max_new_tokens=40, **SETTINGS["all"]),
    )
    engine = engine_over(MODEL, drafters([])["paper"])
    for params in (penalised, plain, penalised, plain):
        assert run(engine, params).token_ids == oracle(MODEL, params)


@pytest.mark.parametrize("budget", [1, 3, 9])
def test_the_least_length_ends_where_it_says(budget: int) -> None:
    """A model that wants to end at once ends with output token number `budget`."""
    follow = hashed(VOCAB, 3, 2)

    def next_logits(context: list[int]) -> list[float]:
        return [9.0 if i == EOS else float(i == follow(context)) for i in range(VOCAB)]

    params = SamplingParams(max_new_tokens=20, min_new_tokens=budget)
    expected = oracle(next_logits, params)
    assert len(expected) == budget + 1 and expected[-1] == EOS
    for drafter in drafters(expected).values():
        generation = run(engine_over(next_logits, drafter), params)
        assert (generation.token_ids, generation.finish_reason) == (expected, "stop")
    ignored = SamplingParams(max_new_tokens=3, min_new_tokens=2, ignore_eos=True)
    engine = engine_over(next_logits, drafters([])["none"])
    assert run(engine, ignored).token_ids == [EOS] * 3  # it ends nothing, so nothing forbids it


def test_large_vocabularies_and_many_rows() -> None:
    model = table_model(5000, seed=3)
    params = SamplingParams(max_new_tokens=30, temperature=0.9, top_p=0.8, **SETTINGS["all"])
    expected = oracle(model, params)
    for drafter in drafters(expected, 5000).values():
        assert run(engine_over(model, drafter, vocab=5000), params).token_ids == expected
