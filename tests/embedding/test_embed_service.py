"""The example service: its loop, and what it says to those who ask wrongly."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Service:
    """A running service."""

    process: subprocess.Popen[str]
    port: int

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def generate(self, **request: object) -> tuple[int, Any]:
        return self.ask("POST", "/generate", json.dumps(request))

    def raw(self, sent: bytes) -> tuple[int, Any]:
        """What a client is answered that does not speak HTTP well."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            return answer.status, json.loads(answer.read())


@pytest.fixture(scope="module")
def service(examples: Path) -> Iterator[Service]:
    process = subprocess.Popen([examples / "embed_service"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("listening on 127.0.0.1:")
    yield Service(process, int(line.rpartition(":")[2]))
    if process.poll() is None:
        process.kill()
    process.wait()


def next_token(before: int, last: int) -> int:
    """The toy model, as the example has it."""
    mixed = before * 31 + last * 17 + 7
    return mixed % 97 if mixed % 5 == 0 else (mixed >> 2) % 13


def decoded(prompt: list[int], count: int) -> list[int]:
    text = list(prompt)
    for _ in range(count):
        text.append(next_token(text[-2] if len(text) > 1 else text[-1], text[-1]))
    return text[len(prompt) :]


@pytest.mark.parametrize("drafter", ["none", "ptd", "suffix", "lookahead", "prompt-lookup"])
def test_every_drafter_gives_the_models_own_text(service: Service, drafter: str) -> None:
    for prompt in ([1, 2, 3], [7], [5, 5] * 20):
        status, answer = service.generate(prompt=prompt, max_new_tokens=80, drafter=drafter)
        assert status == 200
        assert answer["tokens"] == decoded(prompt, 80)
        assert answer["tokens_per_step"] == pytest.approx(80 / answer["steps"], abs=1e-4)
        assert (answer["steps"] == 80) == (drafter == "none")


def test_tokens_per_step_are_printed(service: Service) -> None:
    assert service.process.stdout is not None
    service.generate(prompt=[4], max_new_tokens=33, drafter="none")
    line = ""
    while not line.startswith("33 tokens"):
        line = service.process.stdout.readline()
    assert line == "33 tokens in 33 steps: 1.00 a step\n"


def test_many_clients_at_once(service: Service) -> None:
    def one(index: int) -> bool:
        status, answer = service.generate(prompt=[index, 1], max_new_tokens=200)
        return status == 503 or answer["tokens"] == decoded([index, 1], 200)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(24)))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "not JSON at byte 0"),
        ("[1", "',' or ']' is missing"),
        ("[" * 5000, "too many levels"),
        ("{}", "prompt is missing"),
        ('{"prompt": []}', "at least one token id"),
        ('{"prompt": [1, 512]}', "integer from 0 to 511"),
        ('{"prompt": [1.5]}', "integer from 0 to 511"),
        ('{"prompt": [1], "max_new_tokens": 0}', "max_new_tokens is not an integer from 1 to 4096"),
        ('{"prompt": [1], "drafter": "magic"}', "drafter='magic' is not one of none, ptd"),
        (json.dumps({"prompt": [1] * 5000}), "prompt length=5000"),
        ('{"prompt": [1], "max_tokens": 5}', "'max_tokens' is not one of prompt, max_new_tokens"),
    ],
)
def test_bad_bodies(service: Service, body: str, says: str) -> None:
    status, answer = service.ask("POST", "/generate", body)
    assert status == 400
    assert says in answer["error"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /nowhere HTTP/1.1\r\n\r\n", 404),
        (b"GET /generate HTTP/1.1\r\n\r\n", 405),
        (b"hello\r\n\r\n", 400),
        (b"\x00\xff\r\n\r\n", 400),
        (b"GET /health", 400),
        (b"POST /generate HTTP/1.1\r\nContent-Length: 10\r\n\r\n{}", 400),
        (b"POST /generate HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /generate HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
        (b"POST /generate HTTP/1.1\r\nContent-Length: 65537\r\n\r\n", 413),
        (b"POST /generate HTTP/1.1\r\nContent-Length: 1\r\nContent-length: 2\r\n\r\n{}", 400),
        (b"POST /generate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (b"GET /health HTTP/1.1\r\nX: " + b"y" * 9000, 431),
        (b"GET /health HTTP/1.1\r\n\r\n", 200),
    ],
)
def test_bad_http(service: Service, sent: bytes, status: int) -> None:
    got, answer = service.raw(sent)
    assert got == status
    assert ("error" in answer) == (status != 200)


def test_a_client_that_is_still_sending_gets_its_answer(service: Service) -> None:
    body = b"x" * (4 << 20)
    for first in (b"POST /nowhere HTTP/1.1", b"POST /generate HTTP/1.1"):
        status, answer = service.raw(first + b"\r\nContent-Length: 4194304\r\n\r\n" + body)
        assert status == 413
        assert "longer than 65536 bytes" in answer["error"]


def test_a_request_behind_another_is_not_answered(service: Service) -> None:
    one = b"GET /health HTTP/1.1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
        connection.sendall(one + one)
        answers = b""
        while part := connection.recv(4096):
            answers += part
    assert answers.count(b"HTTP/1.1 200 OK") == 1
    assert b"Connection: close" in answers


def test_clients_that_leave_and_that_drip_keep_no_place(service: Service) -> None:
    body = json.dumps({"prompt": [1, 2], "max_new_tokens": 2000}).encode()
    head = b"POST /generate HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    for sent in (b"", head[:9], head, head + body[:5], head + body):
        for _ in range(20):
            connection = socket.create_connection(("127.0.0.1", service.port), timeout=60)
            connection.sendall(sent)
            connection.close()
    status = 503
    while status == 503:  # those that just left are being noticed
        status, answer = service.generate(prompt=[1, 2], max_new_tokens=50)
    assert (status, answer["tokens"]) == (200, decoded([1, 2], 50))


def test_without_threads_it_refuses_and_still_ends(examples: Path) -> None:
    # Room for the program, and none for the stack of a thread.
    limited = ("/bin/sh", "-c", 'ulimit -s 1000000 && ulimit -v 900000 && exec "$@"', "sh")
    process = subprocess.Popen(
        [*limited, examples / "embed_service"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    port = int(process.stdout.readline().rpartition(":")[2])
    status, answer = Service(process, port).ask("GET", "/health")
    assert (status, answer) == (503, {"error": "too many requests"})
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0


def test_only_this_machine_is_listened_to(service: Service) -> None:
    # Every address of 127/8 is this machine; one that is bound to all answers at each of them.
    with (
        pytest.raises(ConnectionRefusedError),
        socket.create_connection(("127.0.0.2", service.port), timeout=60),
    ):
        pass


def test_a_signal_ends_it_and_the_request_under_way_is_answered(examples: Path) -> None:
    process = subprocess.Popen([examples / "embed_service"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline().rpartition(":")[2])
    body = json.dumps({"prompt": [1, 2], "max_new_tokens": 50})
    head = f"POST /generate HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(head.encode())
        # Connected and served: a later request has been answered.
        assert Service(process, port).ask("GET", "/health") == (200, {"status": "ok"})
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopping\n"
        connection.sendall(body.encode())
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 200
        assert json.loads(answer.read())["tokens"] == decoded([1, 2], 50)
    assert process.wait(timeout=60) == 0


def test_bad_ports(examples: Path) -> None:
    for arguments in (["65536"], ["-1"], ["x"], ["1", "2"]):
        done = subprocess.run(
            [examples / "embed_service", *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "a port of 0 to 65535" in done.stderr
