"""What is given in the wrong place or form is refused with the right call, and the next request is
served.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ptd_engine import LLM, BusyError, ConfigError, PromptError, SamplingParams

from .conftest import toy

PARAMS = SamplingParams(max_new_tokens=2)
CHAT = [{"role": "user", "content": "a"}]


@pytest.fixture
def llm() -> LLM:
    made = toy([*"abc"], (1,))
    made.tokenizer.hf.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    return made


def refused(llm: LLM, kind: type[Exception], said: str, call: Callable[[Any], object]) -> None:
    untyped: Any = llm  # as a user's program has it
    with pytest.raises(kind, match=said):
        call(untyped)
    assert llm.generate([0], PARAMS).text == "ab"


@pytest.mark.parametrize("name", ["generate", "stream", "chat", "stream_chat"])
@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"max_new_tokens": 5}, r"max_new_tokens \(=5\).*SamplingParams\(max_new_tokens=\.\.\.\)"),
        ({"max_tokens": 5}, r"max_tokens .*SamplingParams\(max_new_tokens=\.\.\.\)"),
        ({"temperature": 0.5}, r"temperature .*SamplingParams\(temperature="),
        ({"on_busy": "error"}, r"on_busy .*LLM\.from_pretrained\(model, on_busy="),
        ({"drafter": "none"}, r"drafter .*LLM\.from_pretrained"),
        ({"qqq": 1}, "qqq .*SamplingParams, which has max_new_tokens, temperature"),
        ({"sampling_params": PARAMS}, r"sampling_params .*second one, params"),
    ],
)
def test_unknown_arguments_of_a_request(
    llm: LLM, name: str, argument: dict[str, Any], said: str
) -> None:
    prompt: Any = CHAT if "chat" in name else [0]
    refused(
        llm,
        ConfigError,
        f"^{name} has no argument {said}",
        lambda llm: getattr(llm, name)(prompt, **argument),
    )


def test_a_stream_takes_no_streamer(llm: LLM) -> None:
    refused(llm, ConfigError, "streamer.*generate and chat", lambda m: m.stream([0], streamer=1))


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"torch_dtype": "float32"}, "torch_dtype .*Did you mean dtype"),
        ({"max_model_len": 9}, "max_model_len .*Did you mean max_seq_len"),
        ({"temperature": 1.0}, r"temperature .*generate\(prompt, SamplingParams"),
        ({"qqq": 1}, "qqq .*It has dtype, device, max_seq_len"),
        ({"on_busy": "queue"}, "on_busy='queue'.*'wait' or 'error'"),
        ({"on_busy": None}, "on_busy=None.*'wait' or 'error'"),
    ],
)
def test_bad_arguments_of_loading_are_named_before_anything_is_read(
    argument: dict[str, Any], said: str
) -> None:
    load: Any = LLM.from_pretrained
    with pytest.raises(ConfigError, match=said):
        load("no such model", **argument)


def test_a_models_name_goes_to_from_pretrained() -> None:
    untyped: Any = LLM
    for call in (lambda: untyped("demo"), lambda: untyped(model="demo", dtype="float32")):
        with pytest.raises(ConfigError, match=r"LLM\.from_pretrained\('demo'\)"):
            call()


@pytest.mark.parametrize("params", [5, {"max_new_tokens": 5}, "greedy", SamplingParams])
def test_what_is_no_sampling_params(llm: LLM, params: object) -> None:
    said = r"^params=.*SamplingParams object.*generate\(prompt, SamplingParams\("
    refused(llm, ConfigError, said, lambda llm: llm.generate([0], params))


@pytest.mark.parametrize("streamer", [print, 3, "x", object()])
def test_what_is_no_streamer(llm: LLM, streamer: object) -> None:
    for call in ("generate", "chat"):
        prompt: Any = CHAT if call == "chat" else [0]
        refused(
            llm,
            ConfigError,
            r"^streamer=.*put\(ids\) and end\(\)",
            lambda llm, call=call, prompt=prompt: getattr(llm, call)(prompt, streamer=streamer),
        )


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "prompt='' .*a text of at least one token.*BOS"),
        ([], r"prompt=\[\] .*at least one token.*BOS"),
        (CHAT, r"llm\.chat\(messages\)"),
        (CHAT[0], r"llm\.chat\(messages\)"),
        (["a", "b"], "One prompt a request"),
        ([[0], [1]], "One prompt a request"),
        (b"a", "Decode bytes"),
        (np.array([0]), r"\.tolist\(\)"),
        (torch.tensor([0]), r"\.tolist\(\)"),
        (None, "prompt=None"),
        (0, "prompt=0 "),
        ([0.0], r"prompt\[0\]=0.0 .*integer token id"),
        ([torch.tensor(0.5)], r"prompt\[0\]=tensor\(0.5000\) .*integer token id"),
        ([0, np.array([1, 2])], r"prompt\[1\]=array.*integer token id"),
        ([0, 10**6], r"prompt\[1\]=1000000 .*from 0 to 5"),
    ],
)
@pytest.mark.parametrize("call", ["generate", "stream"])
def test_what_is_no_prompt(llm: LLM, prompt: object, said: str, call: str) -> None:
    refused(llm, PromptError, said, lambda llm: getattr(llm, call)(prompt, PARAMS))


def test_a_long_value_is_shown_in_part(llm: LLM) -> None:
    with pytest.raises(PromptError) as raised:
        llm.generate([[0] * 10**5])  # type: ignore[list-item]
    assert "[[0, 0," in str(raised.value) and len(str(raised.value)) < 1000


def test_integers_of_numpy_are_token_ids(llm: LLM) -> None:
    ids: Any = [np.int64(0)]
    assert llm.generate(ids, PARAMS).token_ids == llm.generate([0], PARAMS).token_ids


def test_a_text_instead_of_messages(llm: LLM) -> None:
    said = r"^messages='hello' .*\"role\": \"user\".*generate\(text\)"
    refused(llm, PromptError, said, lambda llm: llm.chat("hello"))


def test_a_stream_ends_with_its_with_block(llm: LLM) -> None:
    long = SamplingParams(max_new_tokens=50)
    with llm.stream([0], long) as stream:
        assert next(stream).text == "ab"
        with pytest.raises(BusyError):
            llm.generate([0], PARAMS)
    assert list(stream) == []
    assert llm.generate([0], PARAMS).text == "ab"
    with contextlib.suppress(ZeroDivisionError), llm.stream_chat(CHAT, long) as stream:
        next(stream)
        raise ZeroDivisionError
    assert list(stream) == []
    assert llm.generate([0], PARAMS).text == "ab"
    with llm.stream([0], PARAMS) as stream:
        chunks = list(stream)
    assert chunks[-1].output is not None and chunks[-1].output.text == "ab"
