"""Twenty seconds of 32 clients: nothing lost, nothing wrong, memory flat."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.serve_load import Tally


@pytest.mark.slow
def test_load(tiny_path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "serve.json"
    arguments = ["--seconds", "20", "--clients", "32", "--max-queue", "12", "--max-tokens", "16"]
    status = main(["serve", str(tiny_path), *arguments, "--out", str(out)])
    printed = capsys.readouterr().out
    assert status == 0, printed
    document = json.loads(out.read_text(encoding="utf-8"))
    results = document["results"]
    outcomes = results["outcomes"]
    # Clients that stay outnumber the places, so some are refused, and all others are served.
    assert set(outcomes) == {"answered", "refused", "invalid", "left"}, printed
    assert results["requests"] == sum(outcomes.values())
    assert results["tokens"] == 16 * outcomes["answered"]
    assert results["memory"]["growth_mib"] < 64
    assert document["settings"]["clients"] == 32


def test_a_fault_is_a_fault() -> None:
    tally = Tally()
    tally.fault("lost", "x" * 1000)
    assert tally.outcomes == {"lost": 1} and len(tally.faults[0]) < 400
