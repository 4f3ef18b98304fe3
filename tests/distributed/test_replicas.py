"""Ingress and replicas without Ray: what goes between them goes from object to object."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from fastapi import Request
from server.conftest import COMPLETIONS, PIECES, PROMPT, WAIT_S, Toy, make_toy

from ptd_engine.distributed.serve import Scaling
from ptd_engine.distributed.serve.conversation import conversation_of
from ptd_engine.distributed.serve.deploy import _check_room
from ptd_engine.distributed.serve.exposition import joined
from ptd_engine.distributed.serve.ingress import Ingress
from ptd_engine.distributed.serve.outgoing import Outgoing
from ptd_engine.distributed.serve.replica import EngineReplica
from ptd_engine.errors import ConfigError
from ptd_engine.server import ServerConfig
from ptd_engine.server.failures import ApiError

Message = dict[str, Any]


class Call:
    """What a call of a method that streams gives: messages, and a way to give it up."""

    def __init__(self, messages: AsyncIterator[Message]) -> None:
        self._messages = messages

    async def __aiter__(self) -> AsyncIterator[Message]:
        async for message in self._messages:
            yield message

    def cancel(self) -> None:
        self.closing = asyncio.ensure_future(self._messages.aclose())  # type: ignore[attr-defined]


class Handle:
    """A handle of one replica, which notes the sessions it was asked for."""

    def __init__(self, replica: EngineReplica) -> None:
        self.replica = replica
        self.sessions: list[str | None] = []

    def options(self, *, stream: bool, session_id: str | None = None) -> Handle:
        assert stream
        self.sessions.append(session_id)
        return self

    @property
    def answer(self) -> Handle:
        return self

    def remote(self, scope: Message, body: bytes) -> Call:
        return Call(self.replica.answer(scope, body))


class Actor:
    """A replica's actor, as the ingress gets it."""

    def __init__(self, replica: EngineReplica) -> None:
        self.replica = replica
        self.dies = False

    @property
    def record_routing_stats(self) -> Actor:
        return self

    async def remote(self) -> Any:
        if self.dies:
            raise RuntimeError("The actor has died.")
        return await self.replica.record_routing_stats()


class Site:
    """An ingress with one replica."""

    def __init__(self, toy: Toy, **settings: Any) -> None:
        config = ServerConfig(model_name="toy", **settings)
        self.replica = EngineReplica(lambda: toy.llm, config, 8, "one")
        self.handle = Handle(self.replica)
        self.ingress = Ingress(self.handle, config)
        self.actor = Actor(self.replica)

    async def announce(self) -> None:
        """As the replica does again and again."""
        await self.ingress.announce("one", self.actor)

    async def ask(
        self,
        path: str,
        document: Any = None,
        headers: dict[str, str] | None = None,
        gone: asyncio.Event | None = None,
        got: asyncio.Event | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """A request; `got` is set when the first part has come, `gone` makes the client leave."""
        body = b"" if document is None else json.dumps(document).encode()
        given = {"host": "127.0.0.1", **(headers or {})}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST" if body else "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "state": object(),  # cannot be sent
        }
        left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Message] = []

        async def receive() -> Message:
            if left:
                return left.pop()
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            sent.append(dict(message))
            if got is not None and message["type"] == "http.response.body":
                got.set()

        async def whole() -> None:
            response = await self.ingress(Request(scope, receive))
            await response(scope, receive, send)

        task = asyncio.ensure_future(whole())
        if gone is not None:
            await gone.wait()
            task.cancel()  # as Ray Serve does
            with suppress(asyncio.CancelledError):
                await task
            return 0, {}, b""
        await task
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], found, b"".join(part["body"] for part in sent[1:])


def served(body: Any, toy: Toy | None = None, **settings: Any) -> None:
    """Run a test's body with a site, and end its engine."""

    async def run() -> None:
        site = Site(make_toy(gated=False) if toy is None else toy, **settings)
        async with AsyncExitStack() as ending:
            ending.push_async_callback(site.replica.close)
            await site.announce()
            await body(site)

    asyncio.run(run())


def test_answers_are_those_of_the_server() -> None:
    async def body(site: Site) -> None:
        request = {"prompt": PROMPT, "max_tokens": 5}
        status, headers, raw = await site.ask(COMPLETIONS, request)
        assert (status, headers["x-ptd-replica"]) == (200, "one")
        assert json.loads(raw)["choices"][0]["text"] == "".join(PIECES[:5])
        status, headers, raw = await site.ask(COMPLETIONS, {**request, "stream": True})
        assert headers["content-type"].startswith("text/event-stream")
        assert raw.endswith(b"data: [DONE]\n\n")
        status, _, raw = await site.ask(COMPLETIONS, {**request, "nonsense": 1})
        assert (status, json.loads(raw)["error"]["param"]) == (400, "nonsense")
        assert (await site.ask("/v1/models"))[0] == 200
        assert (await site.ask("/nowhere"))[0] == 404

    served(body)


def test_who_may_not_ask_does_not_reach_a_replica() -> None:
    async def body(site: Site) -> None:
        request = {"prompt": PROMPT, "max_tokens": 2}
        assert (await site.ask(COMPLETIONS, request))[0] == 401
        assert (await site.ask(COMPLETIONS, {"prompt": "x" * 2000}))[0] == 401
        assert site.handle.sessions == []
        key = {"authorization": "Bearer secret"}
        assert (await site.ask(COMPLETIONS, request, key))[0] == 200
        assert (await site.ask(COMPLETIONS, {"prompt": "x" * 2000}, key))[0] == 413

    served(body, api_key="secret", max_body_bytes=1024)


def test_a_client_that_leaves_frees_the_engine() -> None:
    toy = make_toy()

    async def body(site: Site) -> None:
        gone, got = asyncio.Event(), asyncio.Event()
        request = {"prompt": PROMPT, "max_tokens": 26, "stream": True}
        asked = asyncio.ensure_future(site.ask(COMPLETIONS, request, gone=gone, got=got))
        await asyncio.to_thread(toy.runner.let, toy.runner.parts + 2)
        await got.wait()
        job = site.replica.service.worker.running
        assert job is not None
        gone.set()
        await asked
        async with asyncio.timeout(WAIT_S):
            while job.cancelled is None:
                await asyncio.sleep(0.005)
        toy.runner.let_all()
        status, _, _ = await site.ask(COMPLETIONS, {"prompt": PROMPT, "max_tokens": 2})
        assert status == 200
        _, _, text = await site.ask("/metrics")
        cancelled = 'ptd_requests_cancelled_total{replica="one",phase="decode",reason="disconnect"}'
        assert f"{cancelled} 1.0" in text.decode()
        assert 'ptd_requests_total{replica="ingress"' not in text.decode()

    served(body, toy)


def test_health_is_that_of_the_replicas_that_answer() -> None:
    async def body(site: Site) -> None:
        status, _, raw = await site.ask("/health")
        assert (status, json.loads(raw)["replicas"]) == (200, 1)
        await site.replica.check_health()
        await site.replica.close()
        status, _, raw = await site.ask("/health")
        assert (status, json.loads(raw)["status"]) == (503, "no replica")
        with pytest.raises(RuntimeError, match="thread has ended"):
            await site.replica.check_health()

    served(body)


def test_a_replica_that_does_not_answer_is_not_there_until_it_tells() -> None:
    async def body(site: Site) -> None:
        site.actor.dies = True
        assert (await site.ask("/health"))[0] == 503
        site.actor.dies = False
        assert (await site.ask("/health"))[0] == 503
        _, _, text = await site.ask("/metrics")
        assert b'replica="one"' not in text and b'replica="ingress"' in text
        await site.announce()
        await site.announce()
        assert json.loads((await site.ask("/health"))[2])["replicas"] == 1
        assert b'replica="one"' in (await site.ask("/metrics"))[2]

    served(body)


def test_conversations_ask_for_their_session() -> None:
    async def body(site: Site) -> None:
        request = {"prompt": PROMPT, "max_tokens": 2}
        await site.ask(COMPLETIONS, request)
        await site.ask(COMPLETIONS, {**request, "max_tokens": 3})
        await site.ask(COMPLETIONS, request, {"x-session-id": "7"})
        await site.ask("/v1/models")
        first, second, named, other = site.handle.sessions
        assert first == second is not None and named not in (None, first) and other is None

    served(body)


def key(session: str | None = None, **document: Any) -> str | None:
    return conversation_of(session, json.dumps(document).encode())


def test_a_conversation_is_known_by_its_beginning() -> None:
    opening = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    more = [{"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Why?"}]
    first = key(messages=opening, max_tokens=3)
    assert first is not None and key(messages=opening + more, stream=True) == first
    assert key(messages=opening[1:]) != first
    assert key(messages=opening, user="eve") != first
    assert key("s", messages=opening) == key("s", messages=more) != first
    assert key(prompt="a" * 300) == key(prompt="a" * 400) != key(prompt="b" * 300)
    assert key(prompt="") is None and key(messages=3) is None
    assert conversation_of(None, b"[1]") is None and conversation_of(None, b"{") is None
    assert key(messages=[{"role": "user", "content": "\udc80"}]) is not None


def test_metrics_are_joined_by_family() -> None:
    one = b'# HELP a_total A.\n# TYPE a_total counter\na_total{x="1"} 2\n# TYPE b gauge\nb 0.5\n'
    assert joined([("r1", one), ("r2", one)]).decode().splitlines() == [
        "# HELP a_total A.",
        "# TYPE a_total counter",
        'a_total{replica="r1",x="1"} 2',
        'a_total{replica="r2",x="1"} 2',
        "# TYPE b gauge",
        'b{replica="r1"} 0.5',
        'b{replica="r2"} 0.5',
    ]


@pytest.mark.parametrize(
    ("kind", "parts", "told"),
    [
        ("text/event-stream", 0, "response"),
        ("text/event-stream", 1, "event"),
        ("application/json", 0, "response"),
        ("application/json", 1, "break"),
    ],
)
def test_an_answer_that_is_lost_is_told(kind: str, parts: int, told: str) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError

    async def run() -> None:
        outgoing = Outgoing(send)
        headers = [(b"content-type", kind.encode())]
        await outgoing({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(parts):
            await outgoing(
                {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}
            )
        await outgoing.fail(ApiError(503, "lost", code="replica_lost"), {"type": "http"}, receive)

    if told == "break":
        with pytest.raises(ApiError, match="lost"):
            asyncio.run(run())
        assert sent[-1]["more_body"]
        return
    asyncio.run(run())
    assert sent[0]["status"] == (503 if told == "response" else 200)
    assert b'"code":"replica_lost"' in sent[-1]["body"] and not sent[-1].get("more_body")


def test_scaling_names_what_is_wrong() -> None:
    assert Scaling(replicas=2).options()["num_replicas"] == 2
    bounds = Scaling(replicas=2, max_replicas=5).options()["autoscaling_config"]
    assert (bounds["min_replicas"], bounds["initial_replicas"], bounds["max_replicas"]) == (2, 2, 5)
    assert (bounds["upscale_delay_s"], bounds["downscale_delay_s"]) == (30.0, 600.0)
    assert bounds["look_back_period_s"] == 30.0
    quick = Scaling(max_replicas=2, upscale_delay_s=0.0).options()["autoscaling_config"]
    assert quick["look_back_period_s"] == 11.0
    for wrong in (
        {"replicas": 0},
        {"min_replicas": 1},
        {"replicas": 3, "max_replicas": 2},
        {"min_replicas": 3, "replicas": 2, "max_replicas": 4},
        {"target_ongoing_requests": 0.0},
        {"upscale_delay_s": -1.0},
        {"downscale_delay_s": float("nan")},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Scaling(**wrong)  # type: ignore[arg-type]


def test_replicas_that_do_not_fit_are_refused() -> None:
    there = {"CPU": 4.0, "memory": 1e9}
    _check_room(Scaling(replicas=2, cpus=2.0), there)
    with pytest.raises(ConfigError, match=r"cpus=4.*at most 2 for 2 replicas.*found 4"):
        _check_room(Scaling(replicas=2, cpus=4.0), there)
    with pytest.raises(ConfigError, match=r"gpus=1.*at most 0 for 1 replicas.*found 0"):
        _check_room(Scaling(gpus=1.0), there)
