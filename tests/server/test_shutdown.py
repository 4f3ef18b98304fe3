"""The end of a server: the running request ends or is reported, those that wait are told."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from cli.conftest import Run

from ptd_engine.server import ServerConfig, create_app
from ptd_engine.server.run import bind, make_server

from .conftest import CHAT, COMPLETIONS, PROMPT, WAIT_S, Client, make_toy, serving, until
from .test_cancellation import read_until

SHORT = {"prompt": PROMPT, "max_tokens": 26, "stream": True}


def test_the_running_request_ends_and_the_others_are_told() -> None:
    toy = make_toy()
    with serving(toy.llm, shutdown_timeout_s=WAIT_S) as running:
        first = running.open(COMPLETIONS, SHORT)
        toy.runner.let(toy.runner.parts + 2)
        second = running.open(COMPLETIONS, SHORT)
        until(lambda: running.service.worker.waiting == 1)
        whole = running.open(COMPLETIONS, {**SHORT, "stream": False})
        until(lambda: running.service.worker.waiting == 2)
        running.stop()
        for client in (second, whole):
            refused = read_until(client, b"}}")
            assert refused.startswith(b"HTTP/1.1 503") and b'"code":"shutting_down"' in refused
            client.close()
        assert not running.ended.is_set()
        toy.runner.let_all()
        received = read_until(first, b"[DONE]")
        assert b'"finish_reason":"length"' in received
        first.close()


def test_a_request_that_takes_too_long_is_reported() -> None:
    toy = make_toy()
    with serving(toy.llm, shutdown_timeout_s=0.05) as running:
        streamed = running.open(COMPLETIONS, SHORT)
        toy.runner.let(toy.runner.parts + 2)
        toy.runner.wait_for_call()
        running.stop()
        job = running.service.worker.running
        assert job is not None
        until(lambda: job.cancelled == "shutdown")
        toy.runner.let_all()
        received = read_until(streamed, b"}}\n\n")
        assert b'data: {"error":{' in received and b'"code":"shutting_down"' in received
        assert b"[DONE]" not in received
        streamed.close()
        assert running.ended.wait(WAIT_S)


def test_the_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match=f"Cannot listen at 127.0.0.1 port {port}"):
            bind("127.0.0.1", port)


def test_the_port_is_taken_while_the_model_is_read() -> None:
    """Both have bound it before one of them listens."""
    config = ServerConfig(port=0)
    with bind("127.0.0.1", 0) as own:
        host, port = own.getsockname()
        with bind(host, port) as other:
            other.listen()
            server = make_server(create_app(make_toy(gated=False).llm, config), config)
            with pytest.raises(ValueError, match=f"Cannot listen at 127.0.0.1 port {port}"):
                asyncio.run(server.serve([own]))
            assert not server.config.app.state.service.worker.alive  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", 70_000),
        ("max_queue", -1),
        ("max_body_bytes", 5),
        ("request_timeout_s", 0),
        ("shutdown_timeout_s", float("nan")),
        ("default_max_tokens", 0),
        ("log_format", "xml"),
        ("api_key", ""),
        ("api_key", "clé"),
    ],
)
def test_bad_settings(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field) as raised:
        ServerConfig(**{field: value})
    assert "clé" not in str(raised.value)  # a key is not shown


class Command:
    """`ptd-engine serve` in a process of its own."""

    def __init__(
        self, *arguments: str, key: str | None = None, command: list[str] | None = None
    ) -> None:
        environment = {name: v for name, v in os.environ.items() if name != "PTD_ENGINE_API_KEY"}
        if key is not None:
            environment["PTD_ENGINE_API_KEY"] = key
        command = command or [sys.executable, "-m", "ptd_engine.cli", "serve", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stderr is not None
        self.log: IO[str] = self.process.stderr
        self.lines: list[str] = []

    def wait_for(self, message: str) -> str:
        """The first line of the log that holds this."""
        for line in self.log:
            self.lines.append(line)
            if message in line:
                return line
        raise AssertionError("".join(self.lines))

    def end(self) -> int:
        """The exit status, once it has ended."""
        self.lines += self.log.readlines()
        return self.process.wait(WAIT_S)


@pytest.fixture
def commands() -> Iterator[list[Command]]:
    started: list[Command] = []
    yield started
    for command in started:
        command.process.kill()
        command.process.wait()
        command.log.close()


def test_the_command(tiny_path: Path, commands: list[Command]) -> None:
    command = Command(
        str(tiny_path), "--port", "0", "--dtype", "float32", "--drafter", "none", key="sesame"
    )
    commands.append(command)
    serving_line = json.loads(command.wait_for('"serving"'))
    assert serving_line["model"] == "tiny"
    found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)", serving_line["url"])
    assert found is not None
    client = Client(int(found[1]))
    body = {"messages": [{"role": "user", "content": "a secret prompt"}], "max_tokens": 5}
    assert client.post(CHAT, body).status == 401
    right = {"Authorization": "Bearer sesame"}
    assert client.post(CHAT, {**body, "user": "me"}, headers=right).status == 200
    strange = {"messages": [{"role": "a secret prompt", "content": ["a secret prompt"]}]}
    assert client.post(CHAT, strange, headers=right).status == 400
    command.process.send_signal(signal.SIGTERM)
    assert command.end() == 0
    log = [json.loads(line) for line in command.lines]  # every line, uvicorn's too
    (request,) = [entry for entry in log if entry["message"] == "request"]
    assert request["status"] == 200 and request["completion_tokens"] == 5
    assert request["user"] == "me" and request["total_s"] >= request["time_to_first_token_s"] > 0
    refused = [entry for entry in log if entry["message"] == "refused"]
    assert [(entry["status"], entry.get("param")) for entry in refused] == [
        (401, None),
        (400, "messages"),
    ]
    assert "secret prompt" not in "".join(command.lines)
    assert "sesame" not in "".join(command.lines)


def test_mistakes_on_the_command_line(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        for arguments, message in (
            (["--port", port], "Cannot listen"),
            (["--max-queue", "-1"], "max_queue"),
            (["--max-body-mib", "0"], "--max-body-mib"),
            (["--drafter", "suffix", "--width", "3"], "--width"),
        ):
            result = run("serve", "nowhere", *arguments)  # before the model is looked for
            assert result.exit_code == 2
            assert result.stderr.startswith("error: ") and message in result.stderr


def test_a_missing_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptd_engine.cli.serve.find_spec", lambda name: None)
    result = run("serve", "nowhere")
    assert result.exit_code == 2 and "pip install 'ptd-engine[serve]'" in result.stderr
