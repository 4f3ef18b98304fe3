"""Replicas under Ray Serve on this machine: streams, conversations, a replica that dies, a load of
which a part is refused and that makes another replica start.

Slow beginnings only: Ray starts once for the module, and every replica imports torch.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import TEMPLATE, save_model
from server.conftest import CHAT, WAIT_S, Client, Reply, until

from ptd_engine import LLM
from ptd_engine.distributed.serve import Scaling, deploy
from ptd_engine.sampling import SamplingParams
from ptd_engine.server import ServerConfig

ray = pytest.importorskip(
    "ray",
    reason="Ray Serve is not installed: pip install -c constraints.txt 'ptd-engine[ray]'",
)

TOKENS = 24


def held(path: str, gate: Path) -> LLM:
    """An engine that stops in the middle of every answer while `gate` exists, and writes down its
    process. Runs in the replica, which does not know this module.
    """
    import os
    import time

    from ray import serve

    from ptd_engine import LLM

    llm = LLM.from_pretrained(path, dtype="float32", drafter="ptd", reuse_prefix=True)
    name = serve.get_replica_context().replica_id.unique_id
    (gate.parent / name).write_text(str(os.getpid()), encoding="utf-8")
    runner: Any = llm.engine.runner
    prefill, launch, steps = runner.prefill, runner.launch, [0]

    def begin(*args: Any, **options: Any) -> Any:
        steps[0] = 0
        return prefill(*args, **options)

    def step(rows: int) -> None:
        steps[0] += 1
        while steps[0] > 4 and gate.exists():
            time.sleep(0.01)
        launch(rows)

    runner.prefill, runner.launch = begin, step
    return llm


@dataclass
class Site:
    """The deployed application, and the same model here."""

    client: Client
    gate: Path
    llm: LLM

    def chat(self, text: str, **options: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": text}]
        return {"messages": messages, "max_tokens": TOKENS, **options}

    def expected(self, text: str) -> str:
        messages = [{"role": "user", "content": text}]
        return self.llm.chat(messages, SamplingParams(max_new_tokens=TOKENS)).text

    def begin(self, text: str) -> http.client.HTTPResponse:
        """Ask for a stream and read its first line."""
        connection = http.client.HTTPConnection("127.0.0.1", self.client.port, timeout=WAIT_S)
        connection.request("POST", CHAT, json.dumps(self.chat(text, stream=True)))
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        return response


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("ray")
    path = str(save_model(folder / "tiny", TEMPLATE))
    patch = pytest.MonkeyPatch()
    # A busy machine starts processes slowly; Ray Serve would kill and start them again.
    patch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", str(WAIT_S))
    # A replica that is asked how busy it is answers late there, and its conversation would move.
    patch.setenv("RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S", str(WAIT_S))
    patch.setenv("RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S", "0.5")
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
    from ray import cloudpickle, serve

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with contextlib.ExitStack() as ending:
        ending.callback(patch.undo)
        ending.callback(ray.shutdown)
        ending.callback(serve.shutdown)
        ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20)
        gate = folder / "hold"
        config = ServerConfig(model_name="tiny", port=0, max_queue=2, shutdown_timeout_s=1.0)
        scaling = Scaling(
            replicas=2,
            max_replicas=3,
            target_ongoing_requests=2.0,
            upscale_delay_s=1.0,
            downscale_delay_s=2.0,
            max_ongoing_requests=3,
            cpus=0.5,
        )
        url = deploy(functools.partial(held, path, gate), config, scaling)
        llm = LLM.from_pretrained(path, dtype="float32", drafter="none")
        yield Site(Client(int(url.rpartition(":")[2])), gate, llm)


def replica_of(reply: Reply) -> str:
    assert reply.status == 200, reply.body
    return reply.headers["x-ptd-replica"]


@pytest.fixture(scope="module")
def openings(site: Site) -> dict[str, str]:
    """A conversation's beginning of each replica: replica -> text."""
    found: dict[str, str] = {}
    for number in range(64):
        text = f"Hello {number}"
        found.setdefault(replica_of(site.client.post(CHAT, site.chat(text))), text)
        if len(found) == 2:
            return found
    raise AssertionError(f"64 conversations went to one replica: {found}")


def test_answers_and_streams_are_those_of_the_engine(site: Site) -> None:
    whole = site.client.post(CHAT, site.chat("Name a river."))
    assert whole.json["choices"][0]["message"]["content"] == site.expected("Name a river.")
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *parts, usage, end = site.client.post(CHAT, site.chat("Name a river.", **options)).events
    text = "".join(part["choices"][0]["delta"].get("content", "") for part in parts)
    assert text == site.expected("Name a river.") and end == "[DONE]"
    assert usage["usage"]["completion_tokens"] == TOKENS and len(parts) > 3
    assert site.client.post(CHAT, site.chat("x", nonsense=1)).error["param"] == "nonsense"


def test_a_conversation_stays_where_it_began(site: Site, openings: dict[str, str]) -> None:
    for replica, text in openings.items():
        request = site.chat(text)
        for _ in range(2):
            reply = site.client.post(CHAT, request)
            assert replica_of(reply) == replica
            answer = reply.json["choices"][0]["message"]["content"]
            request["messages"] += [
                {"role": "assistant", "content": answer},
                {"role": "user", "content": "More."},
            ]
            request["max_tokens"] = 4
        assert reply.json["usage"]["prompt_tokens_details"]["cached_tokens"] > len(text)
    named = {"x-session-id": "a name"}
    replies = [site.client.post(CHAT, site.chat(t), headers=named) for t in openings.values()]
    assert len({replica_of(reply) for reply in replies}) == 1


def test_a_replica_that_dies_takes_only_its_own_requests(
    site: Site, openings: dict[str, str]
) -> None:
    (lost, lost_text), (other, other_text) = openings.items()
    expected = site.expected(other_text)
    site.gate.touch()
    lost_stream, other_stream = site.begin(lost_text), site.begin(other_text)
    assert lost_stream.getheader("x-ptd-replica") == lost
    assert other_stream.getheader("x-ptd-replica") == other
    os.kill(int((site.gate.parent / lost).read_text(encoding="utf-8")), signal.SIGKILL)
    told = lost_stream.read().decode().strip().rpartition("data: ")[2]
    assert json.loads(told)["error"]["code"] == "replica_lost"
    site.gate.unlink()
    events = [line for line in other_stream.read().decode().splitlines() if line]
    assert events[-1] == "data: [DONE]"
    parts = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events[:-1]]
    assert "".join(part["delta"].get("content", "") for part in parts) == expected

    again = site.client.post(CHAT, site.chat(lost_text))
    assert replica_of(again) != lost
    assert again.json["choices"][0]["message"]["content"] == site.expected(lost_text)
    until(lambda: site.client.get("/health").json["replicas"] == 2)
    assert other in site.client.get("/metrics").body.decode()


def test_too_many_requests_are_refused_and_another_replica_starts(site: Site) -> None:
    until(lambda: site.client.get("/health").json["replicas"] == 2)
    texts = [f"Count {number}" for number in range(16)]
    room = 2 * 3

    def ongoing() -> int:
        state = site.client.get("/health").json  # replicas that have no room say how they are
        return int(state["running"] + state["waiting"])

    site.gate.touch()
    try:
        with ThreadPoolExecutor(len(texts)) as clients:
            asked = []
            for text in texts[:room]:  # one by one: of a burst Ray counts as waiting what it places
                asked.append(clients.submit(site.client.post, CHAT, site.chat(text)))
                until(lambda: ongoing() == len(asked))
            asked += [clients.submit(site.client.post, CHAT, site.chat(t)) for t in texts[room:]]
            until(lambda: any(each.done() for each in asked))
            until(lambda: site.client.get("/health").json["replicas"] == 3)
            site.gate.unlink()
            replies = [each.result() for each in asked]
    finally:
        site.gate.unlink(missing_ok=True)
    refused = [reply for reply in replies if reply.status != 200]
    assert refused and all(reply.status == 200 for reply in replies[:room])
    for reply in refused:
        assert reply.status == 429 and int(reply.headers["retry-after"]) > 0
        assert reply.error["code"] == "queue_full"
    for text, reply in zip(texts, replies, strict=True):
        if reply.status == 200:
            assert reply.json["choices"][0]["message"]["content"] == site.expected(text)
    metrics = site.client.get("/metrics").body.decode()
    counted = 'ptd_requests_total{replica="ingress",endpoint="chat",status="429"}'
    assert f"{counted} {float(len(refused))}" in metrics
    until(lambda: site.client.get("/health").json["replicas"] == 2)  # it is not needed any more
