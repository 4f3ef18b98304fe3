"""Clients that leave, time that runs out: the engine is free within two steps, and serves on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from ptd_engine.server.jobs import Job

from .conftest import CHAT, COMPLETIONS, PROMPT, Running, Toy, make_toy, serving, until

ENDLESS = {"prompt": PROMPT, "max_tokens": 4000}
SHORT = {"prompt": PROMPT, "max_tokens": 26}
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def toy() -> Toy:
    return make_toy()


@pytest.fixture
def running(toy: Toy) -> Iterator[Running]:
    with serving(toy.llm) as found:
        yield found
        toy.runner.let_all()


def read_until(client: socket.socket, mark: bytes) -> bytes:
    found = b""
    while mark not in found:
        part = client.recv(4096)
        assert part, found
        found += part
    return found


def check_free(running: Running, toy: Toy, within: int) -> None:
    """The engine is left after at most so many further steps, and the next answer is right."""
    before = len(toy.runner.calls)
    toy.runner.let_all()
    until(lambda: running.service.worker.running is None)
    assert len(toy.runner.calls) - before <= within
    document = running.post(COMPLETIONS, SHORT).json
    assert document["choices"][0]["text"] == ALPHABET
    assert document["usage"]["completion_tokens"] == 26


def the_job(running: Running) -> Job:
    until(lambda: running.service.worker.running is not None)
    job = running.service.worker.running
    assert job is not None
    return job


def test_a_stream_that_is_left(running: Running, toy: Toy) -> None:
    client = running.open(COMPLETIONS, {**ENDLESS, "stream": True})
    toy.runner.let(toy.runner.parts + 3)
    read_until(client, b'"text":"c')
    toy.runner.wait_for_call()
    client.close()
    job = the_job(running)
    until(lambda: job.cancelled is not None)
    check_free(running, toy, within=2)
    assert job.cancelled == "disconnect" and job.tokens <= 10
    assert running.metric("ptd_requests_cancelled_total", reason="disconnect", phase="decode") == 1
    assert running.metric("ptd_requests_total", endpoint="completions", status="499") == 1


def test_an_answer_that_nobody_waits_for(running: Running, toy: Toy) -> None:
    client = running.open(COMPLETIONS, ENDLESS)
    toy.runner.let(toy.runner.parts + 3)
    toy.runner.wait_for_call()
    client.close()
    job = the_job(running)
    until(lambda: job.cancelled is not None)
    check_free(running, toy, within=2)
    assert running.metric("ptd_requests_cancelled_total", reason="disconnect", phase="decode") == 1
    assert running.metric("ptd_requests_total", endpoint="completions", status="499") == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_during_the_prefill(running: Running, toy: Toy, stream: bool) -> None:
    client = running.open(COMPLETIONS, {**ENDLESS, "stream": stream})
    toy.runner.wait_for_call()  # the first of its parts
    client.close()
    job = the_job(running)
    until(lambda: job.cancelled is not None)
    check_free(running, toy, within=2)
    assert "step" not in toy.runner.calls[:2] and job.tokens == 0
    assert running.metric("ptd_requests_cancelled_total", reason="disconnect", phase="prefill") == 1


def test_a_waiting_client_that_leaves(running: Running, toy: Toy) -> None:
    first = running.open(COMPLETIONS, {**SHORT, "stream": True})
    toy.runner.wait_for_call()
    second = running.open(COMPLETIONS, ENDLESS)
    until(lambda: running.get("/health").json == {"status": "ok", "running": 1, "waiting": 1})
    second.close()
    until(lambda: running.get("/health").json == {"status": "ok", "running": 1, "waiting": 0})
    toy.runner.let_all()
    assert b"[DONE]" in read_until(first, b"[DONE]")
    first.close()
    assert running.metric("ptd_requests_cancelled_total", reason="disconnect", phase="queued") == 1
    assert toy.runner.prefills == 1


def test_a_request_is_given_up_once(running: Running, toy: Toy) -> None:
    client = running.open(COMPLETIONS, {**ENDLESS, "stream": True})
    toy.runner.let(toy.runner.parts + 1)
    toy.runner.wait_for_call()
    job, worker = the_job(running), running.service.worker
    closed = 0
    close = job.stream.close

    def count() -> None:
        nonlocal closed
        closed += 1
        close()

    job.stream.close = count  # type: ignore[method-assign]
    for _ in range(3):
        worker.cancel(job, "timeout")
    assert closed == 1
    client.close()
    toy.runner.let_all()
    until(lambda: job.phase == "done")
    worker.cancel(job, "disconnect")
    # Once by the worker, once at the end of its `with` block over the stream.
    assert closed == 2 and job.cancelled == "timeout"
    cancelled = running.metric("ptd_requests_cancelled_total", reason="timeout", phase="decode")
    assert cancelled == 1


def in_time(document: dict[str, Any]) -> dict[str, Any]:
    """A request that gives up soon."""
    return {**document, "timeout": 0.05}


def test_time_runs_out(running: Running, toy: Toy) -> None:
    reply = running.post(COMPLETIONS, in_time(ENDLESS))
    assert reply.status == 504 and reply.error["code"] == "timeout"
    assert "0.05 s" in reply.error["message"]
    check_free(running, toy, within=2)


def test_time_runs_out_before_a_stream_begins(running: Running, toy: Toy) -> None:
    reply = running.post(COMPLETIONS, in_time({**ENDLESS, "stream": True}))
    assert reply.status == 504 and reply.error["code"] == "timeout"
    check_free(running, toy, within=2)


def test_time_runs_out_in_a_stream(running: Running, toy: Toy) -> None:
    client = running.open(COMPLETIONS, {**ENDLESS, "stream": True, "timeout": 2.0})
    toy.runner.let(toy.runner.parts + 3)
    received = read_until(client, b"0\r\n\r\n")
    client.close()
    assert received.startswith(b"HTTP/1.1 200") and b'"text":"c' in received
    assert b'data: {"error":{' in received and b"[DONE]" not in received
    check_free(running, toy, within=2)


def test_time_runs_out_in_the_queue(running: Running, toy: Toy) -> None:
    first = running.open(COMPLETIONS, SHORT)
    toy.runner.wait_for_call()
    reply = running.post(COMPLETIONS, in_time(ENDLESS))
    assert reply.status == 504
    assert running.metric("ptd_requests_cancelled_total", reason="timeout", phase="queued") == 1
    toy.runner.let_all()
    assert ALPHABET.encode() in read_until(first, b"timings")
    first.close()


def test_the_servers_own_limit_holds_too(toy: Toy) -> None:
    with serving(toy.llm, request_timeout_s=0.05) as running:
        reply = running.post(COMPLETIONS, {**ENDLESS, "timeout": 100.0})
        assert reply.status == 504
        toy.runner.let_all()


def test_what_was_streamed_before_is_whole_events(running: Running, toy: Toy) -> None:
    client = running.open(CHAT, {})  # refused: a connection that was used before
    assert b"400" in read_until(client, b"}}")
    client.close()
    client = running.open(COMPLETIONS, {**ENDLESS, "stream": True})
    toy.runner.let(toy.runner.parts + 2)
    received = read_until(client, b'"text":"c')
    lines = [line for line in received.splitlines() if line.startswith(b"data: ")]
    texts = [json.loads(line[6:])["choices"][0]["text"] for line in lines if line.endswith(b"}")]
    assert "".join(texts) == ALPHABET[: 2 * len(texts)]
    client.close()
    toy.runner.let_all()
