"""`--tensor-parallel` of the commands: one output, whoever starts the ranks, and clear ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Run, run
from server.conftest import CHAT, WAIT_S, Client
from server.test_shutdown import Command

from ptd_engine import LLM, SamplingParams

from .test_failures import until_gone

__all__ = ["run"]  # a fixture

TOKENS = 12
SETTINGS = ("--dtype", "float32", "--device", "cpu", "--tensor-parallel", "2")


@pytest.fixture(scope="module")
def path(chat_path: Path) -> str:
    return str(chat_path)


@pytest.fixture(scope="module")
def expected(path: str) -> str:
    """What one rank answers to "Hi"."""
    llm = LLM.from_pretrained(path, dtype="float32", drafter="none")
    return llm.chat([{"role": "user", "content": "Hi"}], SamplingParams(max_new_tokens=TOKENS)).text


def test_generate_starts_the_ranks(run: Run, path: str, expected: str, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Hi\n" + "x" * 500 + "\nHi\n", encoding="utf-8")  # the second is too long
    options = ("--json", "--max-new-tokens", TOKENS)
    result = run("generate", path, *SETTINGS, "--prompts", prompts, *options)
    assert result.exit_code == 1, result.output
    first, second, third = map(json.loads, result.stdout.splitlines())
    assert first["text"] == third["text"] == expected
    assert "500" in second["error"] or "limit" in second["error"]


def test_a_lost_rank_ends_generate(
    run: Run, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Hi\nHo\nHe\n", encoding="utf-8")
    load = LLM.from_pretrained

    def load_and_lose(*args: Any, **options: Any) -> LLM:
        llm = load(*args, **options)
        assert llm.ranks is not None
        os.kill(llm.ranks.processes[0], signal.SIGKILL)
        return llm

    monkeypatch.setattr(LLM, "from_pretrained", load_and_lose)
    result = run("generate", path, *SETTINGS, "--drafter", "none", "--prompts", prompts)
    assert result.exit_code == 2
    assert result.stderr.count("error: ") == 1 and "rank 1 ended" in result.stderr


def test_ranks_that_do_not_fit(run: Run, path: str) -> None:
    for command in (("generate", path, "--prompt", "Hi"), ("chat", path)):
        result = run(*command, "--tensor-parallel", "3", input="")
        assert result.exit_code == 2
        assert "tensor_parallel=3" in result.stderr and "num_key_value_heads=2" in result.stderr


@pytest.mark.parametrize(("rank", "told"), [(0, True), (1, False)])
def test_another_number_than_the_launchers(
    run: Run, path: str, rank: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("RANK", str(rank)),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "1"),
    ):
        monkeypatch.setenv(name, value)
    result = run("generate", path, "--prompt", "Hi")
    assert result.exit_code == 2 and result.stdout == ""
    assert ("tensor_parallel=1" in result.stderr) == told


def launched(*arguments: str) -> list[str]:
    """A command of ptd-engine as torchrun starts it on two ranks."""
    launcher = [sys.executable, "-m", "torch.distributed.run"]
    return [*launcher, "--standalone", "--nproc-per-node", "2", "-m", "ptd_engine", *arguments]


def test_generate_under_torchrun(path: str, expected: str) -> None:
    options = ("--prompt", "Hi", "--json", "--max-new-tokens", str(TOKENS))
    command = launched("generate", path, *SETTINGS, *options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()  # rank 0's alone
    assert json.loads(line)["text"] == expected


@contextlib.contextmanager
def serving(command: list[str]) -> Iterator[tuple[Command, Client]]:
    """A server in processes of its own."""
    with contextlib.ExitStack() as ending:
        made = Command(command=command)
        ending.callback(made.log.close)
        ending.callback(made.process.wait)
        ending.callback(made.process.kill)
        url = json.loads(made.wait_for('"serving"'))["url"]
        yield made, Client(int(url.rpartition(":")[2]))


def ranks_of(command: Command) -> dict[int, int]:
    """Rank -> process, of the processes below this one."""
    found: dict[int, int] = {}
    left = [command.process.pid]
    while left:
        pid = left.pop()
        left += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        rank = re.search(rb"(?:^|\0)RANK=(\d+)", Path(f"/proc/{pid}/environ").read_bytes())
        if rank is not None:
            found[int(rank[1])] = pid
    return found


QUESTION = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": TOKENS}


def test_serve_under_torchrun(path: str, expected: str) -> None:
    options = ("--port", "0", "--drafter", "none")
    with serving(launched("serve", path, *SETTINGS, *options)) as (command, client):
        answer = client.post(CHAT, QUESTION).json
        assert answer["choices"][0]["message"]["content"] == expected
        ranks = ranks_of(command)
        assert sorted(ranks) == [0, 1]
        os.kill(ranks[1], signal.SIGTERM)  # rank 0 decides when it ends
        assert client.post(CHAT, QUESTION).status == 200
        command.process.send_signal(signal.SIGTERM)
        command.end()
        assert any('"ended"' in line for line in command.lines), command.lines
        for pid in ranks.values():
            until_gone(pid)


def test_a_lost_rank_ends_serve(path: str) -> None:
    arguments = [sys.executable, "-m", "ptd_engine", "serve", path, *SETTINGS]
    with serving([*arguments, "--port", "0", "--drafter", "none"]) as (command, client):
        assert client.post(CHAT, QUESTION).status == 200
        assert client.get("/health").status == 200
        (other,) = [pid for rank, pid in ranks_of(command).items() if rank == 1]
        os.kill(other, signal.SIGKILL)
        reply = client.post(CHAT, QUESTION)
        assert reply.status == 500 and "rank 1 ended" in reply.error["message"]
        assert command.end() == 2  # what supervises it starts it again
        assert command.lines[-1].startswith("error: Tensor parallelism over 2 ranks failed")
