"""A rank that ends, raises or stops answering is an error on rank 0, and no rank is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from ptd_engine import ConfigError, SamplingParams
from ptd_engine.engine import Engine
from ptd_engine.errors import DistributedError
from ptd_engine.tensor_parallel import TensorParallel
from ptd_engine.tensor_parallel.commands import Command, Kind, send

Parallel = Callable[..., AbstractContextManager[TensorParallel]]
EngineOver = Callable[[Any, str], Engine]
PARAMS = SamplingParams(max_new_tokens=100)
ENDS_S = 30.0


def until_gone(pid: int) -> None:
    deadline = time.monotonic() + ENDS_S
    while _runs(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_rank_that_is_killed(parallel: Parallel, engine_over: EngineOver) -> None:
    with parallel("llama3") as ranks:
        engine = engine_over(ranks, "none")
        generation = engine.generate([5, 9, 33], PARAMS)
        before = [next(generation).token_ids for _ in range(3)]
        os.kill(ranks.processes[0], signal.SIGKILL)
        with pytest.raises(DistributedError, match="rank 1 ended with status -9.*load it again"):
            for _ in generation:
                pass
        assert generation.token_ids[:3] == [token for step in before for token in step]
        with pytest.raises(DistributedError, match="rank 1 ended"):  # and says so again
            list(engine.generate([5], PARAMS))


def test_a_rank_that_raises(parallel: Parallel, engine_over: EngineOver) -> None:
    with parallel("llama3") as ranks:
        engine = engine_over(ranks, "none")
        generation = engine.generate([5, 9, 33], PARAMS)
        next(generation)
        send(ranks.group, Command(Kind.PREFILL, runner=77))  # there is no such runner
        with pytest.raises(DistributedError, match="rank 1 raised KeyError: 77"):
            for _ in generation:
                pass
        until_gone(ranks.processes[0])


def test_a_rank_that_does_not_answer(parallel: Parallel, engine_over: EngineOver) -> None:
    with parallel("llama3", timeout_s=2.0) as ranks:
        generation = engine_over(ranks, "none").generate([5, 9, 33], PARAMS)
        next(generation)
        worker = ranks.processes[0]
        time.sleep(3.0)  # longer than the timeout: a command may be late
        next(generation)
        os.kill(worker, signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(DistributedError, match="does not answer"):
            for _ in generation:
                pass
        assert time.monotonic() - start < ENDS_S
    assert not _runs(worker)


def test_an_interrupt_waits_for_the_end_of_a_step(
    parallel: Parallel, engine_over: EngineOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with parallel("llama3") as ranks:
        engine = engine_over(ranks, "ptd")
        expected = [step.token_ids for step in engine.generate([5, 9, 33], PARAMS)]
        broadcast, left = ranks.group.broadcast, [0]

        def interrupted(*args: Any, **options: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGINT)
            broadcast(*args, **options)

        monkeypatch.setattr(ranks.group, "broadcast", interrupted)
        for at in (1, 2, 3, 4, 11):  # between command and plan, in a prompt, for logits
            left[0] = at
            with pytest.raises(KeyboardInterrupt):
                for _ in engine.generate([5, 9, 33], PARAMS):
                    pass
        found = [step.token_ids for step in engine.generate([5, 9, 33], PARAMS)]
        assert found == expected

        def breaks(*_: object, **__: object) -> None:
            raise MemoryError

        monkeypatch.setattr(ranks.group, "all_reduce", breaks)
        with pytest.raises(MemoryError):
            list(engine.generate([5], PARAMS))
        with pytest.raises(DistributedError, match="MemoryError on rank 0 in the middle"):
            list(engine.generate([5], PARAMS))


def test_ranks_end_with_rank_0(model_dir: Callable[[str], Path]) -> None:
    program = (
        "import os, signal, sys\n"
        "from ptd_engine import LLM\n"
        "llm = LLM.from_pretrained(sys.argv[1], device='cpu', tensor_parallel=2)\n"
        "llm.generate([5, 9])\n"
        "print(llm.ranks.processes[0], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", program, str(model_dir("llama3"))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    until_gone(int(ended.stdout))


def test_one_group_a_process(parallel: Parallel) -> None:
    with (
        parallel("llama3"),
        pytest.raises(ConfigError, match="tensor_parallel=2.*already.*Close the other"),
        parallel("llama3"),
    ):
        pass
