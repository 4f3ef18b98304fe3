"""No setting is ignored: each changes something or is refused by name."""

from __future__ import annotations

import pickle
import random
import warnings
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from ptd_engine import ConfigError, SamplingParams
from ptd_engine.outputs import GenerationOutput
from ptd_engine.sampling import ResolvedParams

from .conftest import WatchedEngine, llm_of, tokenizer_of
from .logit_tables import MODEL, PROMPT, VOCAB, drafters, engine_over

NAN, INF = float("nan"), float("inf")
PIECES = [chr(ord("a") + i) for i in range(VOCAB - 3)]
BASE: dict[str, Any] = {"max_new_tokens": 40, "temperature": 1.0, "seed": 1}

# A value of every field that must be felt; beside it what else has to be set for that.
FELT: dict[str, tuple[Any, dict[str, Any]]] = {
    "max_new_tokens": (7, {}),
    "temperature": (0.4, {}),
    "top_k": (2, {}),
    "top_p": (0.3, {}),
    "min_p": (0.5, {}),
    "repetition_penalty": (1.8, {}),
    "presence_penalty": (2.0, {}),
    "frequency_penalty": (1.0, {}),
    "logit_bias": ({3: -5.0, 5: 2.0}, {}),
    "min_new_tokens": (40, {}),
    "seed": (2, {}),
    "stop_token_ids": ([*range(3, VOCAB)], {}),
    "ignore_eos": (True, {}),
    "stop": ([*PIECES], {}),
    "include_stop_str": (True, {"stop": [*PIECES]}),
    "logprobs": (2, {}),
    "logits_processor": (lambda ids, logits: logits.flip(0), {}),
    "verification": ("recursive", {}),
}


def answer(**settings: Any) -> GenerationOutput:
    engine: WatchedEngine = engine_over(MODEL, drafters([])["paper"])
    params = SamplingParams(**{**BASE, **settings})
    return llm_of(engine, tokenizer_of(PIECES)).generate(PROMPT, params)


def seen(output: GenerationOutput) -> tuple[Any, ...]:
    return output.token_ids, output.text, output.finish_reason, output.logprobs


def test_the_table_has_every_field() -> None:
    assert [*FELT] == [field.name for field in fields(SamplingParams) if field.name in FELT]
    assert {*FELT} == {field.name for field in fields(SamplingParams)}


@pytest.mark.parametrize("field", FELT)
def test_every_field_is_felt(field: str) -> None:
    value, beside = FELT[field]
    plain = answer(**beside)
    assert plain.finish_reason == "stop"  # so that what may end it later can be seen
    assert seen(answer(**beside)) == seen(plain)
    assert seen(answer(**{**beside, field: value})) != seen(plain)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temprature": 1.0}, "temprature=1.0.*Did you mean temperature"),
        ({"n": 2}, "n=2.*a field of"),
        ({"best_of": 1, "temperature": 1.0}, "best_of=1"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": NAN}, "temperature=nan"),
        ({"temperature": INF}, "temperature=inf"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0.*above 0"),
        ({"repetition_penalty": -1.0}, "repetition_penalty=-1.0"),
        ({"repetition_penalty": NAN}, "repetition_penalty=nan"),
        ({"repetition_penalty": "1.1"}, "repetition_penalty='1.1'"),
        ({"presence_penalty": 2.5}, "presence_penalty=2.5.*-2 to 2"),
        ({"frequency_penalty": NAN}, "frequency_penalty=nan"),
        ({"frequency_penalty": None}, "frequency_penalty=None"),
        ({"logit_bias": [1, 2]}, r"logit_bias=\[1, 2\].*dict"),
        ({"logit_bias": {"3": 1.0}}, "logit_bias='3'.*token ids"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias=-1"),
        ({"logit_bias": {True: 1.0}}, "logit_bias=True"),
        ({"logit_bias": {3: NAN}}, r"logit_bias\[3\]=nan"),
        ({"logit_bias": {3: INF}}, r"logit_bias\[3\]=inf"),
        ({"logit_bias": {3: "1"}}, r"logit_bias\[3\]='1'"),
        ({"min_new_tokens": -1}, "min_new_tokens=-1"),
        ({"min_new_tokens": 1.0}, "min_new_tokens=1.0"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens=9.*max_new_tokens=8"),
        ({"logprobs": -1}, "logprobs=-1.*0 reports each token's own.*the vocabulary"),
        ({"seed": -1}, "seed=-1.*None draws another one for every request"),
        ({"seed": 1.0}, "seed=1.0"),
        ({"top_k": np.bool_(True)}, "top_k="),
        ({"top_p": np.bool_(True)}, "top_p="),
        ({"top_k": np.float32(3)}, "top_k="),
        ({"top_p": np.float32("nan")}, "top_p="),
        ({"max_new_tokens": np.array([1, 2])}, "max_new_tokens=array"),
        ({"temperature": np.array([1.0, 2.0])}, "temperature=array"),
        ({"stop_token_ids": np.array([3])}, r"stop_token_ids=array.*tolist\(\)"),
        ({"stop_token_ids": [3, np.float64(4)]}, "stop_token_ids="),
        ({"logits_processor": lambda logits: logits}, "logits_processor=.*token ids, logits"),
        ({"logits_processor": lambda ids, logits, more: logits}, "logits_processor="),
        ({"logprobs": True}, "logprobs=True"),
        ({"max_new_tokens": []}, r"max_new_tokens=\[\]"),
        ({"temperature": 0, "top_k": 2}, "top_k=2.*temperature is 0"),
        ({"temperature": 0, "top_p": 0.5}, "top_p=0.5.*temperature is 0"),
        ({"temperature": 0, "min_p": 0.5}, "min_p=0.5.*temperature is 0"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SamplingParams(**settings)


def test_numbers_of_numpy_count_and_are_kept_as_plain_ones() -> None:
    numbers: dict[str, tuple[Any, Any]] = {
        "max_new_tokens": (np.int64(5), 5),
        "temperature": (np.float32(0.5), 0.5),
        "top_k": (np.uint8(4), 4),
        "top_p": (np.float64(0.75), 0.75),
        "min_new_tokens": (np.int16(2), 2),
        "presence_penalty": (np.int64(1), 1.0),
        "seed": (np.uint64(2**63), 2**63),
        "stop_token_ids": ([np.int64(3)], (3,)),
        "logit_bias": ({np.int64(3): np.float32(-1)}, {3: -1.0}),
        "logprobs": (np.int8(2), 2),
    }
    given = SamplingParams(**{name: pair[0] for name, pair in numbers.items()})
    plain = SamplingParams(**{name: pair[1] for name, pair in numbers.items()})
    assert given == plain
    for field in fields(SamplingParams):
        assert type(getattr(given, field.name)) is type(getattr(plain, field.name))
    assert answer(stop_token_ids=[np.int64(5)], seed=np.int32(4)).token_ids


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_every_width_of_numpy_s_numbers_is_compared_with_the_bounds(kind: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a half cannot hold the largest temperature
        given = SamplingParams(temperature=kind(0.5), logit_bias={3: kind(-INF), 4: kind(2)})
        beyond: list[Any] = [kind(INF), kind(NAN), Fraction(10**400)]
        for bad in beyond:
            with pytest.raises(ConfigError, match="temperature="):
                SamplingParams(temperature=bad)
    assert given == SamplingParams(temperature=0.5, logit_bias={3: -INF, 4: 2.0})
    assert given.logit_bias is not None
    assert [type(bias) for bias in given.logit_bias.values()] == [float, float]


def test_what_the_caller_changes_afterwards_changes_nothing() -> None:
    ids, bias = [3], {3: 1.0}
    params = SamplingParams(stop_token_ids=ids, logit_bias=bias)
    ids.append(4)
    bias[4] = 2.0
    assert (params.stop_token_ids, params.logit_bias) == ((3,), {3: 1.0})


def test_no_seed_draws_one_for_every_request_that_samples() -> None:
    assert len({tuple(answer(seed=None).token_ids) for _ in range(8)}) > 4
    params = SamplingParams(temperature=1.0, seed=None)
    random.seed(5)
    drawn = [params.resolved().seed for _ in range(3)]
    assert len({*drawn}) == 3
    random.seed(5)
    assert [params.resolved().seed for _ in range(3)] == drawn
    state = random.getstate()
    assert SamplingParams(seed=None).resolved().seed == 0  # greedy draws nothing
    assert random.getstate() == state
    resolved = params.resolved()
    assert resolved.resolved().seed == resolved.seed  # so that a request can be repeated


@pytest.mark.parametrize(
    "processor", [max, lambda *both: both[1], lambda ids, logits, *, more=1: logits]
)
def test_any_function_of_two_is_a_processor(processor: Any) -> None:
    assert SamplingParams(logits_processor=processor).logits_processor is processor


def test_the_least_length_is_compared_with_the_budget_that_comes_of_it() -> None:
    open_budget = SamplingParams(min_new_tokens=200)
    with pytest.raises(ConfigError, match="min_new_tokens=200.*max_new_tokens=128"):
        open_budget.resolved()
    assert open_budget.resolved({"max_new_tokens": 300}).max_new_tokens == 300
    assert SamplingParams(min_new_tokens=200, max_new_tokens=None).resolved()


def test_open_fields_stay_open_until_they_are_resolved() -> None:
    params = SamplingParams(top_p=0.9, max_new_tokens=None)
    assert params.explicit == {"top_p": 0.9, "max_new_tokens": None}
    copied = pickle.loads(pickle.dumps(replace(params, seed=3)))
    assert copied == SamplingParams(top_p=0.9, max_new_tokens=None, seed=3)
    done = copied.resolved({"temperature": 0.5, "top_p": 0.1, "stop": ("x",)})
    assert isinstance(done, ResolvedParams) and done.resolved({"temperature": 2.0}) is done
    assert (done.temperature, done.top_p, done.stop_strings) == (0.5, 0.9, ("x",))
    assert (done.max_new_tokens, done.seed, done.repetition_penalty) == (None, 3, 1.0)
    greedy = SamplingParams().resolved()
    assert (greedy.temperature, greedy.max_new_tokens, greedy.stop) == (0.0, 128, ())
