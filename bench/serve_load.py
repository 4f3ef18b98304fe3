"""Clients of a server on loopback: what they ask for, and what becomes of every request."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal["answered", "refused", "invalid", "left", "wrong", "lost"]

_LONGEST_WAIT_S = 2.0  # after a 429, whatever it says
_IDLE_S = 60.0  # for the engine to be free once nobody asks
# What a server that is broken makes of a client here.
_BROKEN = (
    *(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError),
    *(TimeoutError, ValueError, LookupError, TypeError),
)
_PROBE_EVERY_S = 0.1
_PATH = "/v1/chat/completions"


@dataclass(frozen=True)
class Case:
    """A request and the text that decoding it alone gives."""

    body: dict[str, Any]
    text: str


@dataclass
class Tally:
    """What happened.

    Attributes:
        outcomes: by kind. Every request has one: answered, refused (429 with Retry-After), invalid
            (sent so, and refused with 400), left (the client closed the connection in the middle);
            wrong (another text than alone) and lost (no clear answer) must not happen.
        tokens: of the answers that were read to their end.
        first_s, total_s: of these, seconds to the first part of streams and to the end.
        health_s: seconds that /health took.
        faults: what was wrong or lost, or otherwise not as it must be.
    """

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    tokens: int = 0
    first_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)
    health_s: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def fault(self, outcome: Outcome, what: str) -> None:
        """Note a wrong or lost request."""
        self.outcomes[outcome] += 1
        self.faults.append(f"{outcome}: {what[:300]}")


async def load(
    port: int, cases: Sequence[Case], *, clients: int, seconds: float, timeout_s: float, seed: int
) -> Tally:
    """Have clients ask one request after another for some time; returns after the last answer.

    Of ten requests one is left in the middle and one is not valid; half of the others are streams.
    A server that answers none of them, or whose engine is not free behind the last, is at fault.

    Args:
        timeout_s: of a request; one that takes longer is lost.
    """
    tally = Tally()
    deadline = time.perf_counter() + seconds
    probe = asyncio.ensure_future(_probe(port, tally))
    await asyncio.gather(
        *(
            _client(port, cases, tally, deadline, timeout_s, random.Random(seed * 1000 + number))
            for number in range(clients)
        )
    )
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    if not tally.outcomes["answered"]:
        tally.faults.append("no request was answered")
    if not await _is_idle(port, min(_IDLE_S, timeout_s)):
        tally.faults.append("the engine is not free, though nobody asks")
    return tally


async def _client(
    port: int,
    cases: Sequence[Case],
    tally: Tally,
    deadline: float,
    timeout_s: float,
    rng: random.Random,
) -> None:
    while time.perf_counter() < deadline:
        case, kind = rng.choice(cases), rng.random()
        wait_s = 0.0
        try:
            async with asyncio.timeout(timeout_s):
                if kind < 0.1:
                    await _leave(port, case, tally, rng)
                elif kind < 0.2:
                    await _send_invalid(port, tally)
                else:
                    wait_s = await _ask(port, case, tally, stream=kind < 0.6)
        except _BROKEN as error:
            tally.fault("lost", f"{type(error).__name__} {error}")
        await asyncio.sleep(wait_s)


async def _ask(port: int, case: Case, tally: Tally, *, stream: bool) -> float:
    """One request, read to its end; returns how long to wait before the next."""
    begin = time.perf_counter()
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    reader, writer = await _open(port, "POST", _PATH, {**case.body, **options})
    try:
        status, headers = await _head(reader)
        if status == 429 and int(headers["retry-after"]) > 0:
            tally.outcomes["refused"] += 1
            return min(_LONGEST_WAIT_S, float(headers["retry-after"]))
        if stream and status == 200:
            text, tokens = await _read_stream(reader, begin, tally)
        else:
            document = json.loads(await reader.read())
            if status != 200:
                tally.fault("lost", f"status {status}: {document}")
                return 0.0
            [choice] = document["choices"]
            if choice["finish_reason"] not in ("stop", "length"):
                raise ValueError(f"an answer without its end: {choice}")
            text, tokens = choice["message"]["content"], document["usage"]["completion_tokens"]
    finally:
        writer.close()
    tally.total_s.append(time.perf_counter() - begin)
    if text != case.text:
        tally.fault("wrong", f"{case.body}: {text!r} in place of {case.text!r}")
        return 0.0
    tally.outcomes["answered"] += 1
    tally.tokens += tokens
    return 0.0


async def _read_stream(reader: asyncio.StreamReader, begin: float, tally: Tally) -> tuple[str, int]:
    """Text and tokens of a stream that must end as one."""
    pieces: list[str] = []
    tokens, finished, done = 0, 0, False
    while line := await reader.readline():
        if not line.startswith(b"data: "):
            continue
        if not pieces:
            tally.first_s.append(time.perf_counter() - begin)
        if line.strip() == b"data: [DONE]":
            done = True
            continue
        part = json.loads(line[6:])
        if part.get("usage"):
            tokens = part["usage"]["completion_tokens"]
        for choice in part["choices"]:
            pieces.append(choice["delta"].get("content", ""))
            finished += choice["finish_reason"] is not None
    if not done or finished != 1:
        raise ValueError(f"a stream without its end: {''.join(pieces)!r}")
    return "".join(pieces), tokens


async def _leave(port: int, case: Case, tally: Tally, rng: random.Random) -> None:
    """Close the connection at once, or after a part of a stream."""
    reader, writer = await _open(port, "POST", _PATH, {**case.body, "stream": True})
    status = 200
    if rng.random() < 0.7:
        status, _ = await _head(reader)
        if not await reader.read(rng.randint(1, 400)):
            raise ValueError("an answer without a body")
    writer.close()
    if status in (200, 429):
        tally.outcomes["left" if status == 200 else "refused"] += 1
    else:
        tally.fault("lost", f"status {status} for a stream")


async def _send_invalid(port: int, tally: Tally) -> None:
    reader, writer = await _open(port, "POST", _PATH, {"messages": [], "temperature": -1})
    status, _ = await _head(reader)
    writer.close()
    if status in (400, 429):  # a full queue is seen before some mistakes are
        tally.outcomes["invalid" if status == 400 else "refused"] += 1
    else:
        tally.fault("lost", f"status {status} for a request that is not valid")


async def _probe(port: int, tally: Tally) -> None:
    """Ask /health again and again."""
    while True:
        begin = time.perf_counter()
        try:
            status, _ = await _health(port)
        except _BROKEN as error:
            tally.faults.append(f"/health: {type(error).__name__} {error}")
        else:
            tally.health_s.append(time.perf_counter() - begin)
            if status != 200:
                tally.faults.append(f"/health says {status}")
        await asyncio.sleep(_PROBE_EVERY_S)


async def _is_idle(port: int, limit_s: float) -> bool:
    """Wait until no request runs or waits; False if that does not happen in time."""
    deadline = time.perf_counter() + limit_s
    while time.perf_counter() < deadline:
        try:
            _, state = await _health(port)
            if state["running"] == state["waiting"] == 0:
                return True
        except _BROKEN:
            return False
        await asyncio.sleep(_PROBE_EVERY_S)
    return False


async def _health(port: int) -> tuple[int, Any]:
    """Status and document of /health."""
    reader, writer = await _open(port, "GET", "/health")
    status, _ = await _head(reader)
    document = json.loads(await reader.read())
    writer.close()
    return status, document


async def _open(
    port: int, method: str, path: str, body: object = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
    await writer.drain()
    return reader, writer


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers."""
    raw = await reader.readuntil(b"\r\n\r\n")
    first, *lines = raw.decode().strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split(" ", 2)[1]), headers
