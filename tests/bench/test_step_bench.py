from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def arguments(model: Path) -> list[object]:
    return ["step", model, "--rows", "3,8", "--prefix", "5,20", "--repeats", 3]


def test_every_size_at_every_prefix(bench: Any, tiny_model: Path) -> None:
    status, document, _ = bench(*arguments(tiny_model))
    assert status == 0 and document["benchmark"] == "step"
    steps = document["results"]["steps"]
    assert [(s["prefix"], s["rows"]) for s in steps] == [
        (prefix, rows) for prefix in (5, 20) for rows in (1, 3, 8)
    ]
    weight_bytes = document["results"]["weight_bytes"]
    for s in steps:
        one = next(t for t in steps if t["prefix"] == s["prefix"] and t["rows"] == 1)
        assert s["ms_min"] <= s["ms"] <= s["ms_max"]
        assert s["ratio_to_one_row"] == pytest.approx(s["ms"] / one["ms"])
        assert s["weights_gb_s"] == pytest.approx(weight_bytes / s["ms"] / 1e6)
        assert s["roofline_with_kv_ms"] > s["roofline_ms"] > 0
    # llama3 of ptd_engine.testing.tiny: 2 layers, 2 KV heads of 16, fp32, K and V.
    assert document["results"]["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 4


def test_trees_look_like_the_drafters(bench: Any) -> None:
    from bench.step import realistic_tree

    for rows in (1, 2, 3, 16, 64, 256):
        tree = realistic_tree(7, rows, 300, seed=0)
        assert len(tree) == rows and tree.tokens[0] == 7
        assert tree.n_verify == 1 + round(0.4 * (rows - 1))
        assert max(tree.depths) <= 8
    assert len(set(tree.depths)) > 4
    assert max(map(tree.parents.count, range(1, 256))) > 1


def test_a_result_that_depends_on_the_rows_is_not_timed(
    bench: Any, tiny_model: Path, broken_runner: None
) -> None:
    status, document, output = bench(*arguments(tiny_model))
    assert status == 1 and not document["correct"]
    assert document["results"]["steps"] == []
    found = document["results"]["mismatches"]
    assert [(m["prefix"], m["rows"]) for m in found] == [(5, 3), (5, 8), (20, 3), (20, 8)]
    assert "DIFFERS" in output
