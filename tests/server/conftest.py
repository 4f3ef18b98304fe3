"""Servers on loopback, in a thread of the test: tiny models, and a toy whose steps a test lets
through one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import CONTEXT, TEMPLATE, run, save_model
from contract.conftest import EOS, OTHER, ids_of, llm_of, tokenizer_of
from fastapi import FastAPI

from ptd_engine import LLM, hub
from ptd_engine.engine import Engine
from ptd_engine.server import ServerConfig, bind, create_app
from ptd_engine.server.run import Server, make_server
from ptd_engine.server.service import Service
from ptd_engine.testing.forced import FixedBlocks
from ptd_engine.testing.toy import ToyRunner, scripted

__all__ = ["run"]  # a fixture, for the tests of this folder

WAIT_S = 180.0  # for what comes at once unless something is broken
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PIECES = [chr(ord("a") + i) for i in range(26)]
PROMPT = [0]  # of a toy


@dataclass
class Reply:
    """A response, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The body of an error, checked to be OpenAI's form and nothing else."""
        document = self.json
        assert set(document) == {"error"}
        assert set(document["error"]) == {"message", "type", "param", "code"}
        assert isinstance(document["error"]["message"], str) and document["error"]["message"]
        found: dict[str, Any] = document["error"]
        return found

    @property
    def events(self) -> list[Any]:
        """What a stream's events hold, the last one as text."""
        found = []
        for event in self.body.decode().split("\n\n"):
            if event.startswith(":") or not event:
                continue
            name, _, value = event.partition(": ")
            assert name == "data"
            found.append(value if value == "[DONE]" else json.loads(value))
        return found


class Client:
    """Talks to one server."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        with contextlib.closing(connection):
            connection.request(method, path, raw, headers or {})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, names, response.read())

    def get(self, path: str, **options: Any) -> Reply:
        return self.request("GET", path, **options)

    def post(self, path: str, body: object, **options: Any) -> Reply:
        return self.request("POST", path, body, **options)

    def open(self, path: str, body: object) -> socket.socket:
        """Send a request and read nothing."""
        raw = json.dumps(body).encode()
        made = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(raw)}\r\n\r\n"
        made.sendall(head.encode() + raw)
        return made

    def metric(self, name: str, **labels: str) -> float:
        """A sample of /metrics; 0 where it is not there yet."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        for line in self.get("/metrics").body.decode().splitlines():
            sample, _, value = line.rpartition(" ")
            found, _, rest = sample.partition("{")
            if found == name and wanted == set(filter(None, rest.rstrip("}").split(","))):
                return float(value)
        return 0.0


class Running(Client):
    """A server in a thread.

    Attributes:
        server: of uvicorn.
        ended: set when it has ended.
    """

    def __init__(self, app: FastAPI, config: ServerConfig) -> None:
        listener = bind(config.host, config.port)
        super().__init__(listener.getsockname()[1])
        self.server: Server = make_server(app, config)
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=[listener], daemon=True)
        self._thread.start()
        until(lambda: self.server.started or self.ended.is_set())

    def _run(self, listener: socket.socket) -> None:
        asyncio.run(self.server.serve([listener]))
        self.ended.set()

    @property
    def service(self) -> Service:
        """The running service."""
        found: Service = self.server.config.app.state.service  # type: ignore[union-attr]
        return found

    def stop(self) -> None:
        """As a signal does; returns at once."""
        self.server.should_exit = True


def until(condition: Any) -> None:
    """Wait until something holds that will hold at once unless something is broken."""
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.005)):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("it did not happen")


@contextlib.contextmanager
def serving(llm: LLM, app: FastAPI | None = None, **settings: Any) -> Iterator[Running]:
    """A server with these settings, ended behind the block; `app` has settings of its own."""
    config = ServerConfig(port=0, **{"shutdown_timeout_s": 0.0, **settings})
    running = Running(create_app(llm, config) if app is None else app, config)
    try:
        yield running
    finally:
        running.stop()
        assert running.ended.wait(WAIT_S)


class GatedRunner(ToyRunner):
    """Steps, and parts of prefills, wait until a test lets them through.

    Attributes:
        arrived: released when a step or a part begins to wait.
        allowed: how many may go on.
        calls: what went on.
    """

    parts = 4  # of every prefill

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.arrived = threading.Semaphore(0)
        self.allowed = threading.Semaphore(0)
        self.open = False
        self.calls: list[str] = []

    def _pass(self, name: str) -> None:
        self.arrived.release()
        if not self.open:
            assert self.allowed.acquire(timeout=WAIT_S)
        self.calls.append(name)

    def prefill(self, token_ids: Any, **where: Any) -> int:
        go_on = where.pop("go_on", None)
        for _ in range(self.parts):
            if go_on is not None and not go_on():
                return int(where.get("start", 0))
            self._pass("part")
        return super().prefill(token_ids, **where)

    def launch(self, n_bucket: int) -> None:
        self._pass("step")
        super().launch(n_bucket)

    def let(self, steps: int) -> None:
        """Let so many steps through, once each has arrived."""
        for _ in range(steps):
            self.wait_for_call()
            self.allowed.release()

    def wait_for_call(self) -> None:
        """Return when a step waits."""
        assert self.arrived.acquire(timeout=WAIT_S)

    def let_all(self) -> None:
        """Gate no more."""
        self.open = True
        self.allowed.release()


@dataclass
class Toy:
    """An LLM that answers PROMPT with the alphabet, as often as it is asked."""

    llm: LLM
    runner: GatedRunner


def make_toy(
    pieces: list[str] | None = None,
    blocks: tuple[int, ...] = (1,),
    *,
    gated: bool = True,
    kind: str = "joined",
    max_seq_len: int = 4096,
) -> Toy:
    """`pieces`: what it answers, then for ever the same token; `blocks`: accepted a step."""
    answer = PIECES if pieces is None else pieces
    script = ids_of(answer)
    unique = list(dict.fromkeys(answer))
    vocab_size = 3 + len(unique)
    runner = GatedRunner(
        scripted(script, prompt_len=1, other=OTHER), max_seq_len=max_seq_len, vocab_size=vocab_size
    )
    engine = Engine(
        runner,
        FixedBlocks(script, blocks, decoys=[PROMPT[0], EOS]),
        max_seq_len=max_seq_len,
        vocab_size=vocab_size,
        eos_token_ids=[EOS],
    )
    if not gated:
        runner.let_all()
    return Toy(llm_of(engine, tokenizer_of(unique, kind)), runner)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("served") / "tiny", TEMPLATE)


@pytest.fixture(scope="session")
def tiny_llm(tiny_path: Path) -> LLM:
    """What the server gives is compared with this one's output."""
    return LLM.from_pretrained(str(tiny_path), dtype="float32", drafter="ptd")


@pytest.fixture(scope="module")
def server(tiny_llm: LLM) -> Iterator[Running]:
    """A tiny model served: CONTEXT tokens, one a byte."""
    assert tiny_llm.engine.max_seq_len == CONTEXT
    with serving(tiny_llm.with_drafter("ptd"), model_name="tiny") as running:
        yield running


@pytest.fixture(scope="session")
def demo_llm() -> LLM:
    path = hub.cached_demo()
    if path is None:
        pytest.skip("the demo model is not in the cache: `make demo-model` fetches it")
    return LLM.from_pretrained(str(path), max_seq_len=1024, drafter="ptd")
