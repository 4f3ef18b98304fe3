from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ptd_engine import hub
from ptd_engine.runner import EagerRunner

from .conftest import Run


@pytest.fixture(autouse=True)
def _tiny_demo(chat_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's own model is covered by tests/engine/test_demo_model.py; here a tiny one."""

    def resolve(name: str) -> Path:
        assert name == "demo"
        return Path(chat_model)

    monkeypatch.setattr(hub, "resolve_model", resolve)
    monkeypatch.setattr("ptd_engine.cli.demo.MAX_SEQ_LEN", 192)


def test_both_sides_are_shown_and_compared(run: Run) -> None:
    result = run("demo", "--prompt", "Hi", "--max-new-tokens", 40)
    assert result.exit_code == 0, result.output
    for said in ("tokens per step", "time to first token", "speed-up:", "best of two runs"):
        assert said in result.stdout
    assert "output identical: yes" in result.stdout
    assert "--prompt asks others" not in result.stdout  # that is about the built-in prompt


def test_a_difference_is_a_failure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = EagerRunner.wait

    def wrong(self: EagerRunner) -> Any:
        output = wait(self)
        if self.buffers.max_nodes > 1:  # the drafted side; plain decoding has one row
            output[:, 0] = (output[:, 0] + 1) % self.model.config.vocab_size
        return output

    monkeypatch.setattr(EagerRunner, "wait", wrong)
    result = run("demo", "--prompt", "Hi", "--max-new-tokens", 6)
    assert result.exit_code == 1
    assert "output identical: no" in result.stdout


def test_a_busy_machine_gets_one_round(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptd_engine.cli.demo._LONGEST_FIRST_ROUND_S", 0.0)
    result = run("demo", "--prompt", "Hi", "--max-new-tokens", 4)
    assert result.exit_code == 0
    assert "the times are rough" in result.stdout and "Both once more" not in result.stdout


def test_mistakes(run: Run) -> None:
    result = run("demo", "--max-new-tokens", 0)
    assert result.exit_code == 2
    assert "--max-new-tokens=0 is not valid" in result.stderr
