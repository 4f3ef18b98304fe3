from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

PTD = "ptd:width=2,depth=3,max_draft_nodes=6,max_candidate_nodes=7"


def arguments(model: Path, prompts: Path, *more: object) -> list[object]:
    common = ["--max-new-tokens", 12, "--repeats", 2, "--drafter", PTD]
    return ["decode", model, "--prompts", prompts, *common, *more]


@pytest.mark.parametrize("sampling", [(), ("--temperature", 0.8, "--seed", 3)])
def test_both_sides_are_measured_on_the_same_tokens(
    bench: Any, tiny_model: Path, prompt_file: Path, tmp_path: Path, sampling: tuple[object, ...]
) -> None:
    out = tmp_path / "new" / "decode.json"
    status, document, output = bench(*arguments(tiny_model, prompt_file, "--out", out, *sampling))
    assert status == 0 and document["correct"]
    assert all(column in output for column in ("DE", "HR", "AL", "Dft", "Ver", "step cost"))
    assert out.read_text(encoding="utf-8").count("\n") == 1
    named, total = document["results"]["sets"]
    assert (named["prompt_set"], total["prompt_set"]) == ("few", "total")
    assert named["prompts"] == total["prompts"] == 3
    plain, (drafted,) = total["plain"], total["drafters"]
    assert plain["tokens"] == plain["steps"] == drafted["tokens"]
    identity = drafted["hit_rate"] * drafted["accept_length"] + 1 - drafted["hit_rate"]
    assert drafted["decoding_efficiency"] == pytest.approx(identity)
    assert drafted["mean_draft_nodes"] > 0
    assert drafted["speedup"] == pytest.approx(
        plain["seconds"]["total"] / drafted["seconds"]["total"]
    )
    assert drafted["step_cost_ratio"] == pytest.approx(
        drafted["ms_per_step"] / plain["ms_per_step"]
    )
    assert sum(value for key, value in plain["seconds"].items() if key != "total") == (
        pytest.approx(plain["seconds"]["total"])
    )


def test_the_document_says_where_it_was_measured(
    bench: Any, tiny_model: Path, prompt_file: Path
) -> None:
    _, document, output = bench(*arguments(tiny_model, prompt_file, "--limit", 1))
    assert document["benchmark"] == "decode"
    assert set(document["versions"]) == {"ptd_engine", "torch", "transformers", "python"}
    machine = document["machine"]
    assert machine["cpu"] and machine["cores"] >= 1 and machine["torch_threads"] >= 1
    assert machine["memory_gb"] > 0 and machine["memory_read_gb_s"] > 0
    assert set(document["git"]) == {"commit", "dirty"}
    settings = document["settings"]
    assert settings["model"] == tiny_model.name and settings["dtype"] == "float32"
    assert settings["drafters"][PTD]["width"] == 2
    assert str(tiny_model.parent) not in output and str(prompt_file.parent) not in output


def test_an_output_that_differs_gets_no_speed(
    bench: Any, tiny_model: Path, prompt_file: Path, broken_runner: None
) -> None:
    status, document, output = bench(*arguments(tiny_model, prompt_file))
    assert status == 1 and not document["correct"]
    for part in document["results"]["sets"]:
        assert part["plain"]["tokens_per_second"] > 0
        assert part["drafters"] == [{"drafter": PTD, "identical": False}]
    for prompt in document["results"]["prompts"]:
        assert set(prompt["seconds"]) == {"none"}
    found = document["results"]["mismatches"]
    assert {m["prompt_id"] for m in found} == {"few/0", "few/1", "few/2"}
    assert all(m["got"] == (m["expected"] + 1) % 256 and m["top2_gap"] > 0 for m in found)
    assert "differs" in output and f"drafter {PTD}, few few/0" in output


def test_limit_takes_prompts_from_the_whole_file(
    bench: Any, tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "ten.jsonl"
    path.write_text("".join(f'{{"id": {i}, "prompt": "a{i}"}}\n' for i in range(10)), "utf-8")
    _, document, _ = bench(*arguments(tiny_model, path, "--limit", 4))
    assert [p["id"] for p in document["results"]["prompts"]] == ["0", "2", "5", "7"]


@pytest.mark.parametrize(
    ("drafter", "named"),
    [
        ("nope", "'nope'"),
        ("ptd:girth=4", "girth"),
        ("ptd:width=wide", "wide"),
        ("ptd:width=0", "0"),
    ],
)
def test_a_bad_drafter_is_named(
    bench: Any, tiny_model: Path, prompt_file: Path, drafter: str, named: str
) -> None:
    status, document, output = bench(
        "decode", tiny_model, "--prompts", prompt_file, "--drafter", drafter
    )
    assert status == 2 and document == {}
    assert output.startswith("error: ") and named in output
