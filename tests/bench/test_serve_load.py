"""The load on a server finds what is wrong with one: servers here are broken in one way each."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest

from bench.serve_load import Case, Tally, load

TEXT = "one two"
CASES = [Case({"messages": [{"role": "user", "content": "Count."}]}, TEXT)]


@dataclass(frozen=True)
class Reply:
    """What a server sends; `whole`: the connection ends behind it, as HTTP/1.1 has it."""

    status: int
    body: str
    headers: str = ""

    @property
    def raw(self) -> bytes:
        head = f"HTTP/1.1 {self.status} Any\r\n{self.headers}Connection: close\r\n\r\n"
        return (head + self.body).encode()


def answer(text: str = TEXT, finish: str | None = "stop") -> Reply:
    message = {"message": {"content": text}, "finish_reason": finish}
    return Reply(200, json.dumps({"choices": [message], "usage": {"completion_tokens": 2}}))


def stream(text: str = TEXT, finish: str | None = "stop", end: str = "[DONE]") -> Reply:
    deltas = [({"role": "assistant"}, None), ({"content": text}, None), ({}, finish)]
    parts: list[dict[str, Any]] = [
        {"choices": [{"delta": delta, "finish_reason": reason}]} for delta, reason in deltas
    ]
    parts.append({"choices": [], "usage": {"completion_tokens": 2}})
    events = "".join(f"data: {json.dumps(part)}\n\n" for part in parts)
    return Reply(200, f"{events}data: {end}\n\n" if end else events)


def health(running: int = 0, status: int = 200) -> Reply:
    return Reply(status, json.dumps({"status": "ok", "running": running, "waiting": 0}))


def refusal(headers: str = "Retry-After: 1\r\n") -> Reply:
    return Reply(429, "{}", headers)


SOUND: dict[str, Reply] = {
    "answer": answer(),
    "stream": stream(),
    "invalid": Reply(400, "{}"),
    "health": health(),
}


def kind_of(head: str, body: bytes) -> str:
    if head.startswith("GET /health "):
        return "health"
    asked = json.loads(body)
    if not asked["messages"]:
        return "invalid"
    return "stream" if asked.get("stream") else "answer"


async def put_under_load(replies: dict[str, Reply], seconds: float) -> Tally:
    """Load on a server that answers each kind of request by one of `replies`; a kind that has none
    is never answered.
    """
    held = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length: ")[2].split("\r\n", 1)[0])
        kind = kind_of(head, await reader.readexactly(length))
        if kind not in replies:
            await held.wait()
        else:
            writer.write(replies[kind].raw)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        return await load(port, CASES, clients=4, seconds=seconds, timeout_s=1.0, seed=0)
    finally:
        held.set()
        server.close()


def tally_of(replies: dict[str, Reply], seconds: float = 0.3) -> Tally:
    return asyncio.run(put_under_load(replies, seconds))


def test_a_sound_server_has_no_fault() -> None:
    tally = tally_of(SOUND)
    assert tally.faults == []
    assert set(tally.outcomes) == {"answered", "invalid", "left"}
    assert tally.tokens == 2 * tally.outcomes["answered"] > 0
    assert tally.first_s and tally.total_s and tally.health_s


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        ({"answer": answer("one three")}, "wrong: "),
        ({"stream": stream("one")}, "wrong: "),
        ({"answer": answer(finish=None)}, "without its end"),
        ({"stream": stream(finish=None)}, "without its end"),
        ({"stream": stream(end="")}, "without its end"),
        ({"answer": Reply(200, "{}")}, "lost: KeyError"),
        ({"answer": Reply(200, "no JSON")}, "lost: JSONDecodeError"),
        ({"answer": Reply(500, "{}")}, "lost: status 500"),
        ({"answer": Reply(400, "{}")}, "lost: status 400"),
        ({"answer": refusal(headers="")}, "lost: KeyError"),
        ({"stream": Reply(200, "")}, "without"),
        ({"invalid": answer()}, "lost: status 200 for a request that is not valid"),
        ({"answer": refusal(), "stream": refusal()}, "no request was answered"),
        ({"health": health(status=503)}, "/health says 503"),
        ({"health": Reply(200, "")}, "/health: JSONDecodeError"),
        ({"health": health(running=1)}, "the engine is not free"),
    ],
)
def test_a_broken_server_is_found(broken: dict[str, Reply], fault: str) -> None:
    tally = tally_of({**SOUND, **broken})
    assert any(fault in each for each in tally.faults), tally


@pytest.mark.parametrize("kind", ["answer", "stream"])
def test_a_request_that_is_never_answered_is_lost(kind: str) -> None:
    tally = tally_of({name: reply for name, reply in SOUND.items() if name != kind})
    assert tally.outcomes["lost"] > 0
    assert any("lost: TimeoutError" in each for each in tally.faults)


def test_a_server_that_is_gone_is_found() -> None:
    async def ask() -> Tally:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return await load(port, CASES, clients=2, seconds=0.1, timeout_s=1.0, seed=0)

    tally = asyncio.run(ask())
    assert set(tally.outcomes) == {"lost"}
    assert "the engine is not free, though nobody asks" in tally.faults
