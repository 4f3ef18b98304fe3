from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ptd_engine.cli.options import drafter_spec
from ptd_engine.cli.prompts import PromptItem, collect, read_prompts
from ptd_engine.config import PTDConfig
from ptd_engine.errors import ConfigError, PromptError

Write = Callable[[str, str], Path]


def test_json_lines_take_the_first_turn_before_the_prompt(write: Write) -> None:
    path = write(
        "set.jsonl",
        '{"id": "a/1", "turns": ["one", "two"], "prompt": "other"}\n\n{"prompt": "three"}\r\n'
        '{"id": 7, "turns": null, "prompt": "a\\u2028b"}\n',
    )
    assert read_prompts(path) == [
        PromptItem("a/1", "one"),
        PromptItem("set.jsonl:3", "three"),
        PromptItem("7", "a\u2028b"),
    ]


def test_json_lines_are_known_by_their_first_line(write: Write) -> None:
    assert read_prompts(write("set.txt", '\ufeff\n {"prompt": "x"}\n'))[0].text == "x"


def test_plain_text_is_a_prompt_a_line(write: Write) -> None:
    path = write("set.txt", "first\r\n\n  indented\u2028still\n")
    assert read_prompts(path) == [
        PromptItem("set.txt:1", "first"),
        PromptItem("set.txt:3", "  indented\u2028still"),
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"prompt": "x"}\n{"prompt": \n', "line 2: not valid JSON"),
        ('{"prompt": "x"}\nplain\n', "line 2: not valid JSON"),
        ('{"id": ' + "9" * 5000 + "}\n", "line 1: not valid JSON"),
        ("[" * 100_000 + "\n", "line 1: not valid JSON"),
        ("[1]\n", "line 1: not an object"),
        ('{"id": 1}\n', 'line 1: "prompt" is missing, and so is "turns"'),
        ('{"prompt": 3}\n', 'line 1: "prompt" is not a string'),
        ('{"turns": []}\n', 'line 1: "turns" is not a non-empty list'),
        ('{"turns": "one"}\n', 'line 1: "turns" is not a non-empty list'),
        ('{"turns": [{"role": "user"}]}\n', 'line 1: "turns" is not a non-empty list'),
        (" \n\n", "holds no prompt"),
    ],
)
def test_a_bad_file_is_named_with_its_line(write: Write, content: str, said: str) -> None:
    path = write("bad set.jsonl", content)
    with pytest.raises(PromptError) as caught:
        read_prompts(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="not found"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(PromptError, match="cannot be read"):
        read_prompts(tmp_path)
    (tmp_path / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    with pytest.raises(PromptError, match="not UTF-8 text"):
        read_prompts(tmp_path / "latin.txt")


def test_the_limit_counts_in_each_file(write: Write) -> None:
    files = [write("a.txt", "1\n2\n3\n"), write("b.txt", "4\n")]
    assert [item.text for item in collect(None, files, 2)] == ["1", "2", "4"]
    with pytest.raises(ConfigError, match="--limit=0 is not valid"):
        collect(None, files, 0)


def test_one_source_of_prompts(write: Write) -> None:
    with pytest.raises(ConfigError, match="contradict"):
        collect("x", [write("a.txt", "1\n")])
    with pytest.raises(ConfigError, match="--prompt TEXT"):
        collect(None, [])
    assert collect("", []) == [PromptItem("prompt", "")]


def test_a_tree_shape_is_for_ptd_alone() -> None:
    assert drafter_spec("ptd", None, None) == "ptd"
    assert drafter_spec(None, None, None) == "hybrid"
    assert drafter_spec(None, 2, None) == PTDConfig(width=2)
    assert drafter_spec("ptd", 2, None) == PTDConfig(width=2)
    assert drafter_spec("ptd", None, 3) == PTDConfig(depth=3)
    with pytest.raises(ConfigError, match="--depth=3 is not valid: allowed is nothing"):
        drafter_spec("none", None, 3)
    with pytest.raises(ConfigError, match="width=0"):
        drafter_spec("ptd", 0, None)
