"""Clients that mean harm: what they send costs little, and holds nothing for long."""

from __future__ import annotations

import json
import socket
from typing import Any
from unittest.mock import Mock

import pytest
from pydantic import BaseModel, ValidationError

from ptd_engine import LLM
from ptd_engine.server.connections import HEADERS_S, MOST_IDLE, IdleConnections, allow_files
from ptd_engine.server.failures import ApiError
from ptd_engine.server.parsing import parse
from ptd_engine.server.protocol import ChatRequest, CompletionRequest

from .conftest import CHAT, COMPLETIONS, CONTEXT, WAIT_S, Running, make_toy, serving, until

MESSAGES = [{"role": "user", "content": "Hi"}]
GOOD = {"messages": MESSAGES, "max_tokens": 4}
MANY = 5000


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (CompletionRequest, {"prompt": [None] * MANY}),
        (CompletionRequest, {"prompt": ["a"] * MANY}),
        (CompletionRequest, {"prompt": [[]] * MANY}),
        (CompletionRequest, {"prompt": [[None] * MANY]}),
        (ChatRequest, {"messages": [5] * MANY}),
        (ChatRequest, {"messages": MESSAGES, "tools": [5] * MANY}),
        (ChatRequest, {"messages": MESSAGES, "stop_token_ids": [None] * MANY}),
        (ChatRequest, {"messages": MESSAGES, "stop": [None] * MANY}),
        (ChatRequest, {"messages": MESSAGES, "logit_bias": dict.fromkeys(map(str, range(MANY)))}),
        (ChatRequest, {"messages": MESSAGES, **dict.fromkeys(map(str, range(MANY)))}),
        (ChatRequest, {"messages": MESSAGES, "stream_options": {str(i): 1 for i in range(MANY)}}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) and len(value) < 9 else None,
)
def test_of_many_mistakes_the_first_is_looked_at(
    kind: type[BaseModel], fields: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError) as raised:
        kind.model_validate(fields)
    assert raised.value.error_count() <= 5  # of a union one a member
    with pytest.raises(ApiError) as told:
        parse(json.dumps(fields).encode(), kind)
    assert len(str(told.value)) < 1000


def test_a_text_that_is_far_too_long_is_not_tokenized_whole(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = server.service.llm.tokenizer
    encode, lengths = tokenizer.encode, []

    def noted(text: str, *args: Any, **options: Any) -> list[int]:
        lengths.append(len(text))
        return encode(text, *args, **options)

    monkeypatch.setattr(tokenizer, "encode", noted)
    long = "word " * 100_000
    for path, fields in (
        (COMPLETIONS, {"prompt": long}),
        (CHAT, {"messages": [{"role": "user", "content": long}]}),
        (CHAT, {"messages": [{"role": "user", "content": "a"}] * 20_000}),
    ):
        reply = server.post(path, fields)
        assert reply.status == 400 and reply.error["code"] == "context_length_exceeded"
        assert f"limit is {CONTEXT - 1}" in reply.error["message"]
        assert "more than" in reply.error["message"]
    assert max(lengths) <= 16 * CONTEXT


def test_names_are_told_in_part(server: Running) -> None:
    name = "k" * 100_000
    for fields in ({name: 1}, {"model": name}, {"stream": True, "stream_options": {name: 1}}):
        reply = server.post(CHAT, {**GOOD, **fields})
        assert reply.status in (400, 404) and len(reply.body) < 2000
        assert "kkk" in reply.error["message"]


@pytest.mark.parametrize(
    "fields",
    [{"stop": "\ud800"}, {"stop": ["a", "\udfff"]}, {"\ud800": 1}, {"logit_bias": {"\ud800": 1}}],
)
def test_surrogates_are_refused(server: Running, fields: dict[str, Any]) -> None:
    reply = server.post(CHAT, {**GOOD, **fields})
    assert reply.status == 400 and reply.error["param"] == next(iter(fields))
    assert server.post(CHAT, {**GOOD, "stop": "é\0😀"}).status == 200


def test_requests_of_odd_forms(server: Running) -> None:
    own = f"127.0.0.1:{server.port}"
    for origin in ("http://[::1", "http://[", "[", "//"):
        assert server.post(CHAT, GOOD, headers={"Host": own, "Origin": origin}).status == 403
    for path in ("/", "/health"):
        reply = server.request("HEAD", path)
        assert reply.status == 200 and reply.body == b""
    for path in (f"{CHAT}/", "/health/", "/static"):  # no redirect to a host of the client's
        reply = server.get(path, headers={"Host": "127.0.0.1:1"})
        assert reply.status == 404 and "location" not in reply.headers
    for path in (
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static//etc/passwd",
        "/static/%00",
    ):
        assert server.get(f"/static/{path}").status == 404


def test_who_sends_too_much_is_told(tiny_llm: LLM) -> None:
    """A connection that closes while the client sends loses the answer on its way."""
    with serving(tiny_llm.with_drafter("none"), max_body_bytes=2000) as running:
        for _ in range(5):
            refused = running.post(CHAT, b" " * 4_000_000)
            assert refused.status == 413 and refused.error["code"] == "request_too_large"
        with socket.create_connection(("127.0.0.1", running.port), timeout=WAIT_S) as client:
            # It waits to be asked for the body, so nothing is read.
            client.sendall(
                f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9000\r\n"
                "Expect: 100-continue\r\n\r\n".encode()
            )
            assert client.recv(4096).startswith(b"HTTP/1.1 413")
        assert running.post(CHAT, GOOD).status == 200


def test_requests_on_one_connection_are_answered_in_order(server: Running) -> None:
    raw = json.dumps(GOOD).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(raw)}\r\n\r\n"
    last = b"GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as client:
        client.sendall((head.encode() + raw) * 3 + last)
        received = b""
        while part := client.recv(65536):
            received += part
    assert received.count(b'"finish_reason"') == 3 and received.count(b"HTTP/1.1 200") == 4
    assert received.endswith(b"}") and b'"version"' in received.rpartition(b"\r\n\r\n")[2]


def test_a_storm_of_clients_that_leave() -> None:
    toy = make_toy(gated=False)
    with serving(toy.llm, max_queue=8) as running:
        for number in range(60):
            client = running.open(
                COMPLETIONS, {"prompt": [0], "max_tokens": 3000, "stream": bool(number % 2)}
            )
            if number % 3 == 0:
                client.recv(20)
            client.close()
        until(lambda: running.get("/health").json == {"status": "ok", "running": 0, "waiting": 0})
        assert running.post(COMPLETIONS, {"prompt": [0], "max_tokens": 5}).status == 200


class Connection:
    """One of uvicorn's, as far as it is looked at."""

    def __init__(self, *, busy: bool = False) -> None:
        self.transport = Mock()
        self.cycle = Mock(response_complete=False) if busy else None


def test_connections_that_ask_for_nothing_are_closed() -> None:
    now = [0.0]
    idle = IdleConnections(lambda: now[0])
    silent, busy = Connection(), Connection(busy=True)
    idle.check([silent, busy])
    now[0] = HEADERS_S + 1
    idle.check([silent, busy])
    silent.transport.close.assert_called_once()
    silent.transport.abort.assert_not_called()
    now[0] = 10 * HEADERS_S
    idle.check([silent, busy])
    silent.transport.abort.assert_called_once()  # it has not taken what was left for it
    assert not busy.transport.mock_calls

    busy.cycle = Mock(response_complete=True)  # its time begins now
    idle.check([busy])
    assert not busy.transport.mock_calls


def test_of_too_many_idle_connections_the_oldest_are_closed() -> None:
    now = [0.0]
    idle = IdleConnections(lambda: now[0])
    old = [Connection() for _ in range(10)]
    idle.check(old)
    now[0] = 1.0
    young = [Connection() for _ in range(MOST_IDLE - 5)]
    idle.check([*young, *old])
    assert sum(connection.transport.close.called for connection in old) == 5
    assert not any(connection.transport.close.called for connection in young)


def test_a_silent_connection_is_looked_at(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptd_engine.server.connections.HEADERS_S", 0.01)
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as client:
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A")
        assert client.recv(100) == b""
    assert server.post(CHAT, GOOD).status == 200


def test_files_for_connections() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        allow_files()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft > 256 and hard == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
