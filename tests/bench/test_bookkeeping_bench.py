from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptd_engine.drafters import REGISTERED

ROOT = Path(__file__).parents[2]
SMALL = ("--warm-up", 4000, "--tokens", "100,2000", "--steps", 60)


def test_times_by_nodes_and_by_length(bench: Any) -> None:
    status, document, output = bench("bookkeeping", "--nodes", "16,64", *SMALL)
    assert status == 0 and document["benchmark"] == "bookkeeping"
    results = document["results"]
    assert [s["nodes"] for s in results["by_nodes"]] == [16, 64]
    for size in results["by_nodes"]:
        assert size["mean_nodes"] <= size["nodes"]
        for caches in ("warm_caches", "cold_caches"):
            times = size[caches]
            assert times["total_us"] >= max(times["plan_us"], times["commit_us"]) > 0
            assert times["decoding_efficiency"] > 1.5  # candidates hit
    wide = results["by_nodes"][1]
    assert wide["warm_caches"]["mean_candidate_nodes"] > 16
    assert wide["warm_caches"]["mean_draft_nodes"] > 24
    short, long = results["by_tokens"]
    assert short["tokens"] == 100 and 100 <= short["from_token"] < 170
    assert 2000 <= long["from_token"] < 2070
    bar = results["bar"]
    assert bar["nodes"] == 64 and bar["limit_us"] == 50
    assert bar["ok"] == (wide["filled"] and bar["total_us"] <= 50) == results["ok"]
    assert "plan + commit at 64 nodes" in output


@pytest.mark.parametrize("drafter", [entry.name for entry in REGISTERED])
def test_any_drafter_is_timed(bench: Any, drafter: str) -> None:
    status, document, output = bench("bookkeeping", "--nodes", "8", *SMALL, "--drafter", drafter)
    assert status == 0 and "by drafter" in output
    (timed,) = document["results"]["by_drafter"]
    assert timed["drafter"] == drafter and timed["warm_caches"]["total_us"] > 0
    assert (timed["cold_caches"]["decoding_efficiency"] > 1) == (drafter != "none")


def test_a_drafter_that_differs_is_not_timed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.toy import ToyModel

    monkeypatch.setattr(ToyModel, "plain", lambda self, prompt, count: [0] * count)
    _, document, output = bench("bookkeeping", "--nodes", "8", *SMALL, "--drafter", "ptd")
    assert not document["correct"] and document["results"]["by_drafter"] == []
    assert "DIFFERS from plain decoding with ptd at" in output


def test_without_the_bars_size_there_is_no_verdict(bench: Any) -> None:
    _, document, _ = bench("bookkeeping", "--nodes", "8", *SMALL)
    assert document["results"]["bar"]["ok"] is None and document["results"]["ok"] is None


def test_an_output_that_differs_is_not_timed(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.toy import ToyModel

    answer = ToyModel.answer

    def faulty(self: ToyModel, token_ids: Any, positions: Any) -> Any:
        found = np.array(answer(self, token_ids, positions))
        if len(found) > 1:
            found[0] = 1
        return found

    monkeypatch.setattr(ToyModel, "answer", faulty)
    status, document, output = bench("bookkeeping", "--nodes", "64", *SMALL)
    assert status == 1 and not document["correct"]
    results = document["results"]
    assert results["by_nodes"] == results["by_tokens"] == [] and results["ok"] is False
    assert len(results["mismatches"]) == 2 and "DIFFERS" in output


def test_a_step_too_large_is_refused(bench: Any) -> None:
    status, document, _ = bench("bookkeeping", "--nodes", "256", *SMALL)
    assert status == 2 and document == {}


def test_it_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "bench", "bookkeeping", "--nodes", "8"]
    done = subprocess.run(
        [*command, *map(str, SMALL)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1])["correct"]
