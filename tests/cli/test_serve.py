"""What `ptd-engine serve` does before the first request."""

from __future__ import annotations

import pytest

import ptd_engine.server
from ptd_engine import LLM

from .conftest import Run


def test_graphs_are_captured_before_requests_are_taken(
    run: Run, base_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def warmup(llm: LLM, *, sampling: bool = False) -> int:
        done.append("sampling too" if sampling else "greedy")
        return 0

    monkeypatch.setattr(LLM, "warmup", warmup)
    monkeypatch.setattr(ptd_engine.server, "serve", lambda *args: done.append("requests"))
    result = run("serve", base_model, "--port", "0", "--drafter", "none")
    assert result.exit_code == 0, result.output
    assert done == ["sampling too", "requests"]
