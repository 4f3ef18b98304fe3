"""Many clients at one engine: order, refusals, slow readers, requests that fail."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from ptd_engine import SamplingParams
from ptd_engine.outputs import Chunk, StepTree
from ptd_engine.server import create_app, delivery
from ptd_engine.server.answers import Answer
from ptd_engine.server.delivery import Delivery
from ptd_engine.server.failures import ApiError
from ptd_engine.server.jobs import MOST_TREES, Job

from .conftest import COMPLETIONS, PROMPT, make_toy, serving, until

SHORT = {"prompt": PROMPT, "max_tokens": 26}
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def read_all(client: socket.socket) -> bytes:
    """To the end of a chunked response."""
    found = b""
    while not found.endswith(b"0\r\n\r\n"):
        part = client.recv(65536)
        assert part, found
        found += part
    client.close()
    return found


def streamed_text(received: bytes) -> str:
    return "".join(piece.split(b'"', 1)[0].decode() for piece in received.split(b'"text":"')[1:])


def test_a_full_queue_refuses_with_a_time_to_come_back() -> None:
    toy = make_toy()
    with serving(toy.llm, max_queue=2) as running:
        clients = [running.open(COMPLETIONS, {**SHORT, "stream": True})]
        toy.runner.wait_for_call()
        for waiting in (1, 2):
            clients.append(running.open(COMPLETIONS, {**SHORT, "stream": True}))
            until(lambda: running.service.worker.waiting == waiting)  # noqa: B023
        refused = running.post(COMPLETIONS, SHORT)
        assert refused.status == 429 and refused.error["code"] == "queue_full"
        assert refused.error["type"] == "rate_limit_error"
        assert 1 <= int(refused.headers["retry-after"]) <= 120
        assert running.get("/health").json == {"status": "ok", "running": 1, "waiting": 2}
        toy.runner.let_all()
        for client in clients:
            assert streamed_text(read_all(client)) == ALPHABET
        assert running.post(COMPLETIONS, SHORT).status == 200
        assert running.metric("ptd_requests_refused_total") == 1
        assert running.metric("ptd_requests_total", endpoint="completions", status="429") == 1
        assert running.metric("ptd_requests_waiting") == 0


def test_without_a_queue_one_request_is_served_at_a_time() -> None:
    toy = make_toy()
    with serving(toy.llm, max_queue=0) as running:
        client = running.open(COMPLETIONS, {**SHORT, "stream": True})
        toy.runner.wait_for_call()
        assert running.post(COMPLETIONS, SHORT).status == 429
        toy.runner.let_all()
        assert streamed_text(read_all(client)) == ALPHABET
        until(lambda: running.service.worker.running is None)
        assert running.post(COMPLETIONS, SHORT).status == 200


def test_requests_are_served_in_the_order_of_their_arrival() -> None:
    toy = make_toy()
    with serving(toy.llm) as running:
        order: list[str] = []
        stats = running.service.worker._serve
        running.service.worker._serve = lambda job: order.append(job.id) or stats(job)  # type: ignore[func-returns-value, method-assign]
        clients = []
        for number in range(6):
            clients.append(running.open(COMPLETIONS, {**SHORT, "stream": True}))
            if number == 0:
                toy.runner.wait_for_call()
            until(lambda: running.service.worker.waiting == number)  # noqa: B023
        toy.runner.let_all()
        received = [read_all(client) for client in clients]
        assert [streamed_text(answer) for answer in received] == [ALPHABET] * 6
        assert [answer.split(b'"id":"')[1].split(b'"')[0].decode() for answer in received] == order


def test_everything_else_answers_while_a_step_runs() -> None:
    toy = make_toy()
    with serving(toy.llm) as running:
        client = running.open(COMPLETIONS, {**SHORT, "stream": True})
        toy.runner.wait_for_call()  # this step does not end before the test lets it
        assert running.get("/health").json["running"] == 1
        assert running.get("/v1/models").status == running.get("/").status == 200
        assert running.metric("ptd_requests_running") == 1
        assert running.post(COMPLETIONS, {"prompt": 5}).status == 400
        toy.runner.let_all()
        read_all(client)


def test_a_client_that_does_not_read_holds_nobody_up() -> None:
    toy = make_toy(gated=False)
    with serving(toy.llm) as running:
        slow = running.open(
            COMPLETIONS,
            {
                "prompt": PROMPT,
                "max_tokens": 900,
                "stream": True,
                "stream_options": {"include_steps": True},
            },
        )
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        assert running.post(COMPLETIONS, SHORT).json["choices"][0]["text"] == ALPHABET
        received = read_all(slow)  # now it does, and nothing is lost
        assert received.count(b'"step":') == received.count(b'"accepted":') > 400
        assert b"[DONE]" in received


def broken_at(context: list[int]) -> int:
    """A model whose logits are not finite after the third token of [1]; [0] is fine."""
    if context[0] == 1 and len(context) == 4:
        return -1
    return 3 + (len(context) - 1) % 26


def test_a_request_that_fails_fails_alone() -> None:
    toy = make_toy(gated=False, blocks=(0,))
    toy.runner.next_token = broken_at
    with serving(toy.llm) as running:
        broken: dict[str, Any] = {"prompt": [1], "max_tokens": 26}
        reply = running.post(COMPLETIONS, broken)
        assert reply.status == 500 and reply.error["code"] == "generation_failed"
        assert "position" in reply.error["message"] or "step" in reply.error["message"]
        *parts, error = running.post(COMPLETIONS, {**broken, "stream": True}).events
        assert [part["choices"][0]["text"] for part in parts] == ["a", "b", "c"]
        assert error["error"]["code"] == "generation_failed"
        assert running.post(COMPLETIONS, SHORT).json["choices"][0]["text"] == ALPHABET
        assert running.metric("ptd_requests_total", endpoint="completions", status="500") == 2


def test_a_bug_is_logged_and_not_told(caplog: Any) -> None:
    toy = make_toy(gated=False)

    def bug(context: list[int]) -> int:
        raise RuntimeError("secret detail")

    toy.runner.next_token, works = bug, toy.runner.next_token
    with serving(toy.llm) as running:
        reply = running.post(COMPLETIONS, SHORT)
        assert reply.status == 500 and "secret" not in reply.error["message"]
        assert "secret detail" in caplog.text
        toy.runner.next_token = works
        assert running.post(COMPLETIONS, SHORT).json["choices"][0]["text"] == ALPHABET


def test_an_application_can_be_started_again_in_another_loop() -> None:
    toy = make_toy(gated=False)
    app = create_app(toy.llm)
    for _ in range(2):  # a service of its own each time, with the engine's own drafter
        with serving(toy.llm, app=app) as running:
            found = [
                running.post(COMPLETIONS, {**SHORT, "speculative": way}).json
                for way in ("auto", "none")
            ]
            assert [each["choices"][0]["text"] for each in found] == [ALPHABET] * 2
            assert [each["spec_decode"]["num_steps"] for each in found] == [13, 26]
    assert toy.llm.generate(PROMPT, SamplingParams(max_new_tokens=26)).text == ALPHABET


def test_two_servers_in_one_process() -> None:
    with serving(make_toy(gated=False).llm) as one, serving(make_toy(gated=False).llm) as other:
        for running in (one, other):
            assert running.post(COMPLETIONS, SHORT).json["choices"][0]["text"] == ALPHABET
        assert one.metric("ptd_steps_total") == other.metric("ptd_steps_total") > 0


def test_the_time_to_come_back_follows_what_requests_take() -> None:
    toy = make_toy()
    with serving(toy.llm, max_queue=0) as running:
        worker = running.service.worker
        client = running.open(COMPLETIONS, {**SHORT, "stream": True})
        toy.runner.wait_for_call()
        found = []
        for mean in (0.01, 10.0, 1e6):
            worker._mean_s = mean
            try:
                worker.check_room()
            except ApiError as error:
                found.append(error.headers["Retry-After"])
        assert found == ["1", "5", "120"]
        toy.runner.let_all()
        read_all(client)


def test_silence_is_filled_with_comments(monkeypatch: Any) -> None:
    monkeypatch.setattr(delivery, "KEEP_ALIVE_S", 0.02)
    toy = make_toy()
    with serving(toy.llm) as running:
        first = running.open(COMPLETIONS, {**SHORT, "stream": True})
        toy.runner.wait_for_call()
        second = running.open(COMPLETIONS, {**SHORT, "stream": True})
        received = second.recv(4096)
        while received.count(b": waiting\n\n") < 3:
            received += second.recv(4096)
        assert received.startswith(b"HTTP/1.1 200") and b"data:" not in received
        toy.runner.let_all()
        read_all(first)
        assert streamed_text(read_all(second)) == ALPHABET


def test_a_client_that_takes_nothing_is_given_up(monkeypatch: Any) -> None:
    monkeypatch.setattr(delivery, "STALL_S", 0.02)
    ended: list[Any] = []

    class NoWorker:
        given_up = 0

        def cancel(self, job: Job, reason: str) -> None:
            self.given_up += 1

    async def stall() -> int:
        nothing: Any = None
        worker: Any = NoWorker()
        job = Job("id", nothing, nothing, prompt_len=1, speculative=True, arrived=0.0)
        answer = Answer("completions", job, "m", nothing)
        job.post(Chunk("a", [3]))
        stream = Delivery(worker, job, answer, 1e9).stream(
            usage=False, steps=None, done=ended.append
        )

        async def never(*_: Any) -> Any:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await never()

        await stream({"type": "http"}, never, send)
        return int(worker.given_up)

    assert asyncio.run(stall()) == 1
    assert [error.status for error in ended] == [499]


def test_a_client_that_is_far_behind_gets_no_more_trees() -> None:
    tree = StepTree([0], [-1], 1, [])

    async def lag() -> list[bool]:
        nothing: Any = None
        job = Job("id", nothing, nothing, prompt_len=1, speculative=True, arrived=0.0)
        for _ in range(MOST_TREES + 5):
            job.post(Chunk("a", [3], tree=tree))
            await asyncio.sleep(0)
        return [(await job.next()).tree is not None for _ in range(MOST_TREES + 5)]

    assert asyncio.run(lag()) == [True] * MOST_TREES + [False] * 5
