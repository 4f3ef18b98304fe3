"""The example of docs/drafter_guide.md is run as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bench import own_drafter
from ptd_engine import LLM, SamplingParams, _core
from ptd_engine.errors import ConfigError

GUIDE = Path(__file__).parents[2] / "docs" / "drafter_guide.md"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    first = re.search(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert first is not None
    path = tmp_path / "successors.py"
    path.write_text(first[1], encoding="utf-8")
    return path


def test_it_has_about_fifty_lines(example: Path) -> None:
    assert 35 <= len(example.read_text("utf-8").splitlines()) <= 55


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_it_drafts_and_changes_nothing(example: Path, tiny_model: Path, temperature: float) -> None:
    drafter = own_drafter.load(f"file:{example}:Successors")
    plain = LLM.from_pretrained(str(tiny_model), drafter="none", max_seq_len=100)
    drafted = LLM.from_model(plain.model, plain.tokenizer, max_seq_len=100, drafter=drafter)
    params = SamplingParams(max_new_tokens=40, temperature=temperature, seed=5, ignore_eos=True)
    accepted = 0
    for text in ("ab ab ab", "one two"):  # two requests: begin() has to forget
        expected, found = plain.generate(text, params), drafted.generate(text, params)
        assert found.token_ids == expected.token_ids
        assert 0 < found.stats.mean_candidate_nodes <= 12
        accepted += found.stats.accepted
    assert accepted > 0 or temperature > 0


def test_it_is_measured_by_name(
    bench: Any, example: Path, tiny_model: Path, prompt_file: Path
) -> None:
    label = f"file:{example}:Successors"
    status, document, output = bench(
        *("decode", tiny_model, "--prompts", prompt_file, "--drafter", label),
        *("--max-new-tokens", 8, "--repeats", 1),
    )
    assert status == 0 and document["settings"]["drafters"][label] == own_drafter.fingerprint(label)
    assert document["results"]["sets"][-1]["drafters"][0]["speedup"] > 0 and "Successors" in output


@pytest.mark.parametrize("wrong", ["Nothing", "Other", ""])
def test_a_class_that_is_none_is_named(example: Path, wrong: str) -> None:
    example.write_text(example.read_text("utf-8") + "\n\nclass Other:\n    pass\n", "utf-8")
    with pytest.raises(ConfigError, match=r"successors\.py"):
        own_drafter.load(f"file:{example}:{wrong}")
    for path in (example.with_name("missing.py"), example.with_suffix(".txt")):
        with pytest.raises(ConfigError, match="file:PATH:CLASS"):
            own_drafter.load(f"file:{path}:Successors")


def test_every_method_of_a_drafter_is_described() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    methods = {"needs", "begin", "propose", "observe", "observe_prompt"}
    assert all(f"`{name}(" in text for name in methods)
    needs = [name for name in vars(_core.DrafterNeeds) if not name.startswith("_")]
    assert needs and all(f"`{name}`" in text for name in needs)
