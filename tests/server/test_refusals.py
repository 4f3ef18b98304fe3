"""What is refused: by an error of OpenAI's form that names the field, before the engine sees it."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from ptd_engine import LLM

from .conftest import CHAT, COMPLETIONS, CONTEXT, WAIT_S, Running, serving

MESSAGES = [{"role": "user", "content": "Hi"}]
GOOD = {"messages": MESSAGES, "max_tokens": 4}

# (fields, the field to blame)
BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    *(({"max_tokens": value}, "max_tokens") for value in (0, -1, 1e9, 10**9, 2**40, "5", True, [])),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    *(({"temperature": value}, "temperature") for value in (-1, "hot", 1e300, True)),
    ({"top_p": 0.0, "temperature": 1.0}, "top_p"),
    ({"top_p": 0.5}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"top_k": 2.5}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    *(({"logit_bias": value}, "logit_bias") for value in ({"x": 1}, {"-1": 1}, {"99999": 1}, [])),
    *(({"stop": value}, "stop") for value in (5, [""], "", ["x"] * 100, [1], {"a": 1})),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"seed": -1}, "seed"),
    ({"min_new_tokens": 9}, "min_new_tokens"),
    *(({"n": value}, "n") for value in (0, 2, "1")),
    ({"logprobs": 2}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 100_000}, "logprobs"),
    ({"verification": "no"}, "verification"),
    ({"verification": "recursive", "logprobs": True}, "logprobs"),
    ({"logits_processor": None}, "logits_processor"),
    ({"speculative": "ptd"}, "speculative"),
    ({"speculative": True}, "speculative"),
    ({"timeout": 0}, "timeout"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include": True}}, "stream_options.include"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"chat_template_kwargs": {"x": 1}}, "template_kwargs"),
    ({"maxtokens": 4}, "maxtokens"),
    ({"functions": []}, "functions"),
    ({"user": "u" * 300}, "user"),
    ({"user": "\ud800"}, "user"),
]
BAD_MESSAGES: list[Any] = [
    [],
    "Hi",
    None,
    5,
    ["Hi"],
    [{}],
    [{"role": "user"}],
    [{"role": "robot", "content": "Hi"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
    [{"role": "user", "content": "\ud800"}],
    [{"role": "user", "content": "Hi", "colour": "red"}],
    [{"role": "user", "content": "Hi", "tool_calls": [5]}],
]
BAD_BODIES = [
    *(b"", b"{", b"[]", b"null", b"5", b"\xff\xfe", b'{"messages": NaN}', b"[" * 100_000),
    b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": Infinity}',
    b'{"messages": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"max_tokens": ' + b"9" * 5000 + b"}",
]


@pytest.fixture(autouse=True)
def _serves_on(server: Running) -> Any:
    yield
    assert server.post(CHAT, GOOD).status == 200


@pytest.mark.parametrize(
    ("fields", "param"), BAD_FIELDS, ids=lambda value: json.dumps(value)[:60].strip('"')
)
def test_bad_fields(server: Running, fields: dict[str, Any], param: str) -> None:
    reply = server.post(CHAT, {**GOOD, **fields})
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error" and reply.error["param"] == param
    assert param in reply.error["message"]


@pytest.mark.parametrize("messages", BAD_MESSAGES, ids=lambda value: repr(value)[:60])
def test_bad_messages(server: Running, messages: Any) -> None:
    reply = server.post(CHAT, {"messages": messages})
    assert reply.status == 400 and reply.error["param"] in ("messages", "tool_calls")


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: repr(body[:40]))
def test_bad_bodies(server: Running, body: bytes) -> None:
    assert server.post(CHAT, body).status == 400
    assert server.post(COMPLETIONS, body).error["type"] == "invalid_request_error"


@pytest.mark.parametrize("prompt", ["", [], [[]], ["a", "b"], [1.5], [-1], [99999], None, "\ud800"])
def test_bad_prompts(server: Running, prompt: Any) -> None:
    reply = server.post(COMPLETIONS, {"prompt": prompt})
    assert reply.status == 400 and reply.error["param"] == "prompt"


def test_null_is_the_same_as_nothing(server: Running) -> None:
    names = ("max_completion_tokens", "temperature", "stop", "n", "seed", "stream", "tools", "user")
    reply = server.post(CHAT, {**GOOD, **dict.fromkeys(names)})
    assert reply.json["choices"] == server.post(CHAT, GOOD).json["choices"]


def test_a_prompt_that_is_too_long(server: Running) -> None:
    for length, status in ((CONTEXT - 1, 200), (CONTEXT, 400), (CONTEXT + 300, 400)):
        reply = server.post(COMPLETIONS, {"prompt": [5] * length, "max_tokens": 1})
        assert reply.status == status
        if status == 400:
            assert reply.error["code"] == "context_length_exceeded"
            expected = f"The prompt has {length} tokens; the limit is {CONTEXT - 1}"
            assert reply.error["message"].startswith(expected)


def test_fields_that_contradict_each_other(server: Running) -> None:
    reply = server.post(CHAT, {**GOOD, "max_completion_tokens": 5})
    assert reply.status == 400 and "contradict" in reply.error["message"]


def test_an_unknown_model(server: Running) -> None:
    reply = server.post(CHAT, {**GOOD, "model": "gpt-4"})
    assert reply.status == 404 and reply.error["code"] == "model_not_found"
    assert server.post(CHAT, {**GOOD, "model": "tiny"}).status == 200


def test_an_unknown_field_is_named_with_what_was_meant(server: Running) -> None:
    assert "Did you mean top_k?" in server.post(CHAT, {**GOOD, "topk": 1}).error["message"]
    assert "has no JSON" in server.post(CHAT, {**GOOD, "logits_processor": 1}).error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", CHAT, 405),
        ("POST", "/health", 405),
        ("GET", "/static/x", 404),
    ],
)
def test_paths_that_are_not_there(server: Running, method: str, path: str, status: int) -> None:
    reply = server.request(method, path)
    assert reply.status == status and path in reply.error["message"]


def test_the_size_of_a_body(tiny_llm: LLM) -> None:
    with serving(tiny_llm.with_drafter("none"), max_body_bytes=2000) as running:
        large = {**GOOD, "user": "x" * 2000}
        refused = running.post(CHAT, large)
        assert refused.status == 413 and refused.error["code"] == "request_too_large"
        # Without a length: it is counted as it comes.
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=WAIT_S)
        raw = json.dumps(large).encode()
        parts = iter([raw[at : at + 500] for at in range(0, len(raw), 500)])
        by_parts = {"Transfer-Encoding": "chunked"}
        connection.request("POST", CHAT, parts, by_parts, encode_chunked=True)
        response = connection.getresponse()
        assert response.status == 413
        assert json.loads(response.read())["error"]["code"] == "request_too_large"
        connection.close()
        assert running.post(CHAT, GOOD).status == 200
        assert running.metric("ptd_requests_total", endpoint="chat", status="413") == 2


def test_the_key(tiny_llm: LLM) -> None:
    with serving(tiny_llm.with_drafter("none"), api_key="sesame") as running:
        for header in (None, "Bearer", "Bearer wrong", "Bearer sesame1", "sesame", "Basic sesame"):
            headers = {} if header is None else {"Authorization": header}
            for path in (CHAT, COMPLETIONS):
                refused = running.post(path, GOOD, headers=headers)
                assert refused.status == 401 and refused.error["code"] == "invalid_api_key"
                assert refused.headers["www-authenticate"] == "Bearer"
            for path in ("/v1/models", "/metrics", "/version", "/openapi.json"):
                assert running.get(path, headers=headers).status == 401
        right = {"Authorization": "Bearer sesame"}
        assert running.post(CHAT, GOOD, headers=right).status == 200
        assert running.get("/v1/models", headers=right).status == 200
        for path in ("/", "/health", "/static/chat.js"):
            assert running.get(path).status == 200


def test_pages_of_others(server: Running, tiny_llm: LLM) -> None:
    own = f"127.0.0.1:{server.port}"
    for host, origin, status in (
        (own, None, 200),
        (own, f"http://{own}", 200),
        ("localhost", None, 200),
        ("[::1]:80", None, 200),
        (own, "https://example.org", 403),
        (own, "null", 403),
        ("rebound.example.org", "http://rebound.example.org", 403),
        ("rebound.example.org", None, 403),
        ("[", None, 403),
    ):
        headers = {"Host": host} | ({} if origin is None else {"Origin": origin})
        assert server.post(CHAT, GOOD, headers=headers).status == status
    with serving(tiny_llm.with_drafter("none"), allowed_hosts=["chat.example.org"]) as running:
        headers = {"Host": "chat.example.org", "Origin": "https://chat.example.org"}
        assert running.post(CHAT, GOOD, headers=headers).status == 200
