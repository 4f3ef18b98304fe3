"""The report end to end: what it holds, how it goes on after a kill, and what gets no figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptd_engine.runner import EagerRunner

PTD = "ptd:width=4,depth=6"
SMALL = ("--max-new-tokens", 10, "--drafter", PTD, "prompt-lookup")
KINDS = ("methods", "width", "depth", "overhead", "branches")


@pytest.fixture
def paper(bench: Any, tiny_model: Path, prompt_file: Path, tmp_path: Path) -> Any:
    """Run the benchmark into tmp_path/out; options may override those of SMALL."""

    def run(*options: object, parts: tuple[str, ...] = ("methods",)) -> Any:
        return bench(
            *("paper", tiny_model, "--data", prompt_file.parent, "--out", tmp_path / "out"),
            *("--quick", "--limit", 2, *SMALL, *options, "--parts", *parts),
        )

    return run


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out" / "runs.jsonl").open(encoding="utf-8")]


def sections(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {section["name"]: section for section in document["results"]["sections"]}


def rows(section: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(section["columns"], row, strict=True)) for row in section["rows"]]


def test_every_part_of_the_report(paper: Any, tmp_path: Path) -> None:
    status, document, output = paper(parts=KINDS)
    assert status == 0 and document["correct"] and document["benchmark"] == "paper"
    found = sections(document)
    assert list(found) == [
        *("greedy", "acceptance", "position", "sampled", "quality"),
        *("width", "depth", "overhead", "branches", "time"),
    ]
    out = tmp_path / "out"
    assert json.loads((out / "report.json").read_text("utf-8")) == document
    for name in found:
        image = out / f"{name}.png"
        assert image.exists() == (name != "quality"), name
        if image.exists():
            assert image.read_bytes().startswith(b"\x89PNG") and image.stat().st_size > 2000
            assert f"({name}.png)" in (out / "report.md").read_text("utf-8")
            assert f'src="{name}.png"' in (out / "report.html").read_text("utf-8")
    for row in (*rows(found["greedy"]), *rows(found["sampled"])):
        assert row["identical"] == "2/2"
        if row["method"] != "none":
            mixed = row["HR"] * row["AL"] + 1 - row["HR"]
            assert row["DE"] == pytest.approx(mixed) and row["tokens/s"] > 0
    assert [row["width"] for row in rows(found["width"])] == [1, 2, 4]
    assert {row["method"] for row in rows(found["overhead"])} == {"ptd", "lookahead"}
    assert all(0 <= row["tokens"] <= 1 for row in rows(found["branches"]))
    quality = {row["method"]: row for row in rows(found["quality"])}
    assert quality[PTD]["identical"] == quality[PTD]["ROUGE-L"] == quality[PTD]["BLEU"] == 1
    assert quality["none, another seed"]["ROUGE-L"] < 1
    assert "ptd, recursive verification" in quality
    assert str(tmp_path) not in output.replace(str(out), "")


def test_the_tables_show_the_numbers_of_the_document(paper: Any, tmp_path: Path) -> None:
    _, document, _ = paper()
    text = (tmp_path / "out" / "report.md").read_text("utf-8")
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    for section in document["results"]["sections"]:
        part = text.partition(f"## {section['title']}\n")[2].partition("\n## ")[0]
        table = [line for line in part.splitlines() if line.startswith("|")]
        assert [c.strip() for c in table[0].strip("|").split("|")] == section["columns"]
        for line, row in zip(table[2:], section["rows"], strict=True):
            shown = [cell.strip() for cell in line.strip("|").split("|")]
            for cell, value in zip(shown, row, strict=True):
                if isinstance(value, float):
                    digits = len(cell.partition(".")[2])
                    assert float(cell) == pytest.approx(value, abs=0.51 * 10**-digits)
                else:
                    assert cell == ("" if value is None else str(value))
                assert f">{cell}</td>" in page


def test_speeds_are_those_of_the_lines(paper: Any, tmp_path: Path) -> None:
    _, document, _ = paper()
    greedy = [line for line in lines(tmp_path) if line["experiment"] == "methods@0"]
    assert len(greedy) == 2
    total = {row["method"]: row for row in rows(sections(document)["greedy"])}
    for label in ("none", PTD, "prompt-lookup"):
        stats = [line["runs"][label]["stats"] for line in greedy]
        seconds = sum(s["total_time_s"] for s in stats)
        tokens = sum(s["tokens"] for s in stats)
        assert total[label]["tokens/s"] == pytest.approx(tokens / seconds)
        assert total[label]["DE"] == pytest.approx(tokens / sum(s["steps"] for s in stats))
        for line in greedy:
            run = line["runs"][label]
            assert sum(run["step_tokens"]) == len(run["token_ids"]) == run["stats"]["tokens"]


def test_a_run_goes_on_after_a_kill(paper: Any, tmp_path: Path) -> None:
    paper()
    path = tmp_path / "out" / "runs.jsonl"
    whole = path.read_bytes()
    kept = whole.splitlines(keepends=True)
    assert len(kept) == 4  # two prompts, greedy and sampled
    path.write_bytes(b"".join(kept[:2]) + kept[2][: len(kept[2]) // 2])
    status, document, _ = paper("--resume")
    again = path.read_bytes().splitlines(keepends=True)
    assert status == 0 and again[:2] == kept[:2] and len(again) == 4
    assert [json.loads(a)["key"] for a in again] == [json.loads(b)["key"] for b in kept]
    assert len(rows(sections(document)["sampled"])) == 2 * 3


def test_nothing_is_run_twice_and_everything_anew_after_a_change(
    paper: Any, tmp_path: Path
) -> None:
    _, first, _ = paper()
    before = lines(tmp_path)
    _, second, _ = paper("--resume")
    assert lines(tmp_path) == before
    assert sections(second) == sections(first)
    paper("--resume", "--max-new-tokens", 9)
    after = lines(tmp_path)
    assert after[:4] == before and len(after) == 8
    assert {line["key"] for line in before}.isdisjoint(line["key"] for line in after[4:])


def test_runs_are_not_written_over(paper: Any) -> None:
    paper()
    status, document, output = paper()
    assert status == 2 and document == {} and "--resume" in output


def test_a_broken_line_is_named(paper: Any, tmp_path: Path) -> None:
    paper()
    path = tmp_path / "out" / "runs.jsonl"
    path.write_text("{}\n" + path.read_text("utf-8"), "utf-8")
    status, _, output = paper("--resume")
    assert status == 2 and "line 1" in output


def test_a_drafter_that_changes_the_output_gets_no_figure(
    paper: Any, tmp_path: Path, broken_runner: None
) -> None:
    status, document, output = paper()
    assert status == 1 and not document["correct"] and "DIFFERS" in output
    found = sections(document)
    for name in ("greedy", "sampled"):
        for row in rows(found[name]):
            if row["method"] == PTD:
                assert row["tokens/s"] == "differs" and row["identical"] == "0/2"
                assert row["speed-up"] is row["DE"] is row["step cost"] is None
            elif row["method"] == "none":
                assert row["tokens/s"] > 0
    for name in ("acceptance", "position", "time"):
        assert PTD not in [row["method"] for row in rows(found[name])]
    assert {m["drafter"] for m in document["results"]["mismatches"]} >= {PTD}
    assert "differ, and their methods get no figure" in (tmp_path / "out/report.md").read_text()


def test_without_a_reference_that_repeats_itself_nobody_gets_a_figure(
    paper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, calls = EagerRunner.wait, iter(range(10**9))

    def drifting(self: EagerRunner) -> Any:
        output = np.array(wait(self))
        output[:, 0] = (output[:, 0] + next(calls)) % 256
        return output

    monkeypatch.setattr(EagerRunner, "wait", drifting)
    status, document, _ = paper("--repeats", 2)
    assert status == 1
    assert {row["tokens/s"] for row in rows(sections(document)["greedy"])} == {"differs"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--temperature", 0], "--temperature"),
        (["--drafter", "nope"], "'nope'"),
        (["--limit", 0], "--limit"),
        (["--data", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_run_is_named(paper: Any, options: list[object], named: str) -> None:
    status, document, output = paper(*options)
    assert status == 2 and document == {} and named in output


def test_plots_need_their_package(
    paper: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.paper.plots.find_spec", lambda name: None)
    status, _, output = paper()
    assert status == 2 and "[bench]" in output and "--without-plots" in output
    status, document, _ = paper("--without-plots")
    assert status == 0 and not list((tmp_path / "out").glob("*.png"))
    assert "![" not in (tmp_path / "out" / "report.md").read_text("utf-8")
    assert len(sections(document)) == 6
