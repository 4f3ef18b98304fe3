"""What the endpoints answer: OpenAI's objects, with the engine's own output in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import ptd_engine
from ptd_engine import LLM, SamplingParams

from .conftest import CHAT, COMPLETIONS, CONTEXT, Running

MESSAGES = [{"role": "user", "content": "Hé 世界"}]


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": MESSAGES, "max_tokens": 40, **fields}


def test_a_chat_is_that_of_the_engine(server: Running, tiny_llm: LLM) -> None:
    reply = server.post(CHAT, chat())
    expected = tiny_llm.chat(MESSAGES, SamplingParams(max_new_tokens=40))
    document = reply.json
    assert reply.status == 200 and reply.headers["content-type"] == "application/json"
    (choice,) = document["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected.text, "refusal": None}
    assert (choice["index"], choice["finish_reason"]) == (0, expected.finish_reason)
    assert choice["logprobs"] is None
    assert document["object"] == "chat.completion" and document["model"] == "tiny"
    assert (
        document["id"].startswith("chatcmpl-") and document["id"] == reply.headers["x-request-id"]
    )
    usage = expected.usage
    assert document["usage"]["prompt_tokens"] == usage.prompt_tokens
    assert document["usage"]["completion_tokens"] == usage.completion_tokens
    assert document["usage"]["total_tokens"] == usage.total_tokens


@pytest.mark.parametrize("usage", [False, True])
def test_the_order_of_a_stream(server: Running, tiny_llm: LLM, usage: bool) -> None:
    reply = server.post(CHAT, chat(stream=True, stream_options={"include_usage": usage}))
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    *parts, done = reply.events
    assert done == "[DONE]"
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}
    assert len({(part["id"], part["created"], part["model"]) for part in parts}) == 1
    if usage:
        assert all(part["usage"] is None for part in parts[:-1])
        last = parts.pop()
        assert last["choices"] == [] and last["usage"]["completion_tokens"] == 40
    else:
        assert not any("usage" in part for part in parts)
    first, *middle, end = [part["choices"][0] for part in parts]
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert (end["delta"], end["finish_reason"]) == ({}, "length")
    assert {choice["finish_reason"] for choice in (first, *middle)} == {None}
    text = "".join(choice["delta"]["content"] for choice in middle)
    assert text == tiny_llm.chat(MESSAGES, SamplingParams(max_new_tokens=40)).text


@pytest.mark.parametrize("prompt", ["abc", [7, 8, 9], ["abc"], [[7, 8, 9]]])
def test_completions(server: Running, tiny_llm: LLM, prompt: Any) -> None:
    plain = prompt[0] if isinstance(prompt[0], list) or prompt == ["abc"] else prompt
    expected = tiny_llm.generate(plain, SamplingParams(max_new_tokens=16))
    whole = server.post(COMPLETIONS, {"prompt": prompt}).json  # OpenAI's 16 tokens
    (choice,) = whole["choices"]
    assert whole["object"] == "text_completion" and choice["text"] == expected.text
    *parts, end, done = server.post(COMPLETIONS, {"prompt": prompt, "stream": True}).events
    assert "".join(part["choices"][0]["text"] for part in parts) == expected.text
    assert end["choices"][0]["finish_reason"] == expected.finish_reason and done == "[DONE]"


def test_without_a_budget_a_chat_goes_on_to_the_context(server: Running) -> None:
    document = server.post(CHAT, chat(max_tokens=None, ignore_eos=True)).json
    assert document["usage"]["total_tokens"] == CONTEXT
    assert document["choices"][0]["finish_reason"] == "length"


def test_every_sampling_field_does_what_it_does_in_python(server: Running, tiny_llm: LLM) -> None:
    fields: dict[str, Any] = {
        "temperature": 0.9,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": -0.2,
        "min_new_tokens": 5,
        "seed": 11,
        "stop_token_ids": [3],
        "ignore_eos": True,
        "stop": ["zz", "q"],
        "include_stop_str": True,
    }
    reply = server.post(CHAT, chat(**fields, logit_bias={"65": 2.5, "7": -100}))
    params = SamplingParams(max_new_tokens=40, **fields, logit_bias={65: 2.5, 7: -100})
    expected = tiny_llm.chat(MESSAGES, params)
    document = reply.json
    assert document["choices"][0]["message"]["content"] == expected.text
    assert document["usage"]["completion_tokens"] == len(expected.token_ids)
    assert document["seed"] == 11
    recursive = {"temperature": 1.5, "seed": 3, "verification": "recursive"}
    document = server.post(CHAT, chat(**recursive)).json
    expected = tiny_llm.chat(MESSAGES, SamplingParams(max_new_tokens=40, **recursive))  # type: ignore[arg-type]
    assert document["choices"][0]["message"]["content"] == expected.text


def test_a_seed_is_drawn_and_told(server: Running) -> None:
    first, second = (server.post(CHAT, chat(temperature=1.0)).json for _ in range(2))
    assert first["seed"] != second["seed"]
    again = server.post(CHAT, chat(temperature=1.0, seed=first["seed"])).json
    assert again["choices"] == first["choices"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_new_tokens"])
def test_names_of_the_budget(server: Running, name: str) -> None:
    document = server.post(CHAT, {"messages": MESSAGES, name: 3}).json
    assert document["usage"]["completion_tokens"] == 3


def test_text_parts_are_joined(server: Running) -> None:
    parts = [{"type": "text", "text": "Hé "}, {"type": "text", "text": "世界"}]
    joined = server.post(CHAT, chat(messages=[{"role": "user", "content": parts}])).json
    assert joined["choices"] == server.post(CHAT, chat()).json["choices"]


def test_log_probabilities_of_a_chat(server: Running, tiny_llm: LLM) -> None:
    fields = {"logprobs": True, "top_logprobs": 3}
    expected = tiny_llm.chat(MESSAGES, SamplingParams(max_new_tokens=40, logprobs=3))
    assert expected.logprobs is not None
    whole = server.post(CHAT, chat(**fields)).json["choices"][0]["logprobs"]["content"]
    streamed = []
    for part in server.post(CHAT, chat(**fields, stream=True)).events[:-1]:
        if (logprobs := part["choices"][0]["logprobs"]) is not None:
            streamed += logprobs["content"]
    assert streamed == whole and len(whole) == 40
    for entry, found in zip(expected.logprobs, whole, strict=True):
        raw = tiny_llm.tokenizer.token_bytes(entry.token_id)
        spelled = raw.decode() if raw.isascii() else f"bytes:\\x{raw.hex()}"  # one token a byte
        assert bytes(found["bytes"]) == raw and found["token"] == spelled
        assert found["logprob"] == pytest.approx(entry.logprob, abs=1e-4)
        assert [likely["logprob"] for likely in found["top_logprobs"]] == pytest.approx(
            [value for _, value in entry.top], abs=1e-4
        )


def test_log_probabilities_of_a_completion(server: Running) -> None:
    fields = {"prompt": "abc", "max_tokens": 12, "logprobs": 2}
    whole = server.post(COMPLETIONS, fields).json["choices"][0]["logprobs"]
    assert {len(values) for values in whole.values()} == {12}
    offsets = [0]
    for token in whole["tokens"][:-1]:
        offsets.append(offsets[-1] + len(token))
    assert whole["text_offset"] == offsets
    for value, top in zip(whole["token_logprobs"], whole["top_logprobs"], strict=True):
        assert value == pytest.approx(max(top.values()))  # greedy
    joined: dict[str, list[Any]] = {name: [] for name in whole}
    for part in server.post(COMPLETIONS, {**fields, "stream": True}).events[:-1]:
        for name, values in (part["choices"][0]["logprobs"] or {}).items():
            joined[name] += values
    assert joined == whole


def test_a_forbidden_token_has_a_probability_that_json_can_hold(tiny_llm: LLM) -> None:
    from ptd_engine.outputs import TokenLogprobs
    from ptd_engine.server.answers import Answer

    job: Any = None
    answer = Answer("chat", job, "m", tiny_llm.tokenizer)
    entry = TokenLogprobs(70, float("-inf"), ((70, float("-inf")),))
    found = answer._logprobs([entry])
    assert found is not None and found["content"][0]["logprob"] == -9999.0
    json.dumps(found, allow_nan=False)


def test_models_and_version(server: Running) -> None:
    listed = server.get("/v1/models").json
    assert listed["object"] == "list"
    (card,) = listed["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("tiny", "model", CONTEXT)
    assert server.get("/v1/models/tiny").json == card
    assert server.get("/version").json == {"version": ptd_engine.__version__}
    assert server.get("/health").json == {"status": "ok", "running": 0, "waiting": 0}
    missing = server.get("/v1/models/other")
    assert missing.status == 404 and missing.error["code"] == "model_not_found"
    paths = server.get("/openapi.json").json["paths"]
    assert {CHAT, COMPLETIONS, "/v1/models", "/health", "/version", "/metrics"} <= set(paths)


def test_a_served_name_with_slashes(tiny_llm: LLM) -> None:
    from .conftest import serving

    with serving(tiny_llm.with_drafter("none"), model_name="org/model") as running:
        assert running.get("/v1/models/org/model").json["id"] == "org/model"
        assert running.post(CHAT, chat(model="org/model", max_tokens=1)).status == 200
