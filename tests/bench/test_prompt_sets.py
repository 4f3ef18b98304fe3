from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench.prompt_sets import add_prompt_set_arguments, evenly, load_sets
from ptd_engine.errors import PromptError, UnavailableError

HUB_ROWS = {
    "HuggingFaceH4/mt_bench_prompts": {"prompt": ["first turn", "second turn"]},
    "openai/gsm8k": {"question": "How many?", "answer": "2"},
    "openai/openai_humaneval": {"prompt": "def f():\n"},
    "google-research-datasets/mbpp": {"text": "Write f.", "test_list": ["assert f()", "assert 1"]},
}


def load(*arguments: str) -> dict[str, list[tuple[str, str]]]:
    parser = ArgumentParser()
    add_prompt_set_arguments(parser)
    sets = load_sets(parser.parse_args(arguments))
    return {s.name: [(item.id, item.text) for item in s.items] for s in sets}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b", "a"):
        rows = [{"id": f"{name}{i}", "turns": [f"text {i}"]} for i in range(10)]
        path = tmp_path / f"{name}.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "notes.txt").write_text("no prompts here", encoding="utf-8")
    return tmp_path


def test_a_folder_is_a_set_a_file(folder: Path) -> None:
    found = load("--data", str(folder), "--limit", "2")
    assert found == {
        "a": [("a0", "text 0"), ("a5", "text 5")],
        "b": [("b0", "text 0"), ("b5", "text 5")],
    }
    assert found["a"] == load("--prompts", str(folder / "a.jsonl"), "--limit", "2")["a"]


def test_a_folder_serves_decode(bench: Any, tiny_model: Path, folder: Path) -> None:
    status, document, _ = bench(
        *("decode", tiny_model, "--data", folder, "--limit", 1),
        *("--max-new-tokens", 5, "--repeats", 1),
    )
    assert status == 0
    assert [s["prompt_set"] for s in document["results"]["sets"]] == ["a", "b", "total"]
    drafted = document["results"]["sets"][2]["drafters"][0]
    assert sum(drafted["acceptance_by_depth"]) == pytest.approx(
        drafted["mean_acceptance_length"] - 1
    )


@pytest.mark.parametrize("limit", [1, 3, 10, 99, None])
def test_chosen_prompts_are_spread_over_the_set(limit: int | None) -> None:
    chosen = evenly(range(10), limit)
    assert len(chosen) == min(10, limit or 10) and chosen == sorted(set(chosen))


def test_a_folder_without_prompts_is_named(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=str(tmp_path)):
        load("--data", str(tmp_path))


def test_a_limit_below_one_is_named(folder: Path) -> None:
    with pytest.raises(PromptError, match="--limit=0"):
        load("--data", str(folder), "--limit", "0")


def test_the_public_sets_need_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UnavailableError, match="pip install datasets"):
        load("--data", "hub")


def test_the_public_sets_become_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(path: str, config: str | None, *, split: str) -> list[dict[str, Any]]:
        return [HUB_ROWS[path]] * 250

    fake = ModuleType("datasets")
    fake.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    found = load("--data", "hub")
    assert {name: len(items) for name, items in found.items()} == {
        "mt_bench": 250,
        "gsm8k_100": 100,
        "humaneval": 250,
        "mbpp_100": 100,
    }
    assert found["mt_bench"][0][1] == "first turn" and found["gsm8k_100"][0][1] == "How many?"
    assert found["mbpp_100"][0][1] == "Write f.\nassert f()\nassert 1"

    def broken(*_: object, **__: object) -> None:
        raise OSError("no route")

    fake.load_dataset = broken  # type: ignore[attr-defined]
    with pytest.raises(PromptError, match="no route"):
        load("--data", "hub")
