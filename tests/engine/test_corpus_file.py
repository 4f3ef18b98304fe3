"""The settings of Lookahead and Self-Draft, and the corpus file of Self-Draft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ptd_engine import _core
from ptd_engine.corpus_file import read_corpus
from ptd_engine.drafter_configs import LookaheadConfig, SelfDraftConfig
from ptd_engine.drafters import make_drafter
from ptd_engine.errors import ConfigError


def test_a_corpus_file_is_read_in_its_order(tmp_path: Path) -> None:
    file = tmp_path / "corpus.json"
    file.write_text(json.dumps({"7": [[3, 4], [1, 2]], "0": []}))
    assert read_corpus(str(file), 2) == {7: [[3, 4], [1, 2]], 0: []}


def test_the_corpus_reaches_the_drafter(tmp_path: Path) -> None:
    file = tmp_path / "corpus.json"
    file.write_text(json.dumps({"7": [[3, 4, 5, 6]]}))
    made = make_drafter(SelfDraftConfig(corpus=str(file)), device_type="cpu")
    assert isinstance(made, _core.SelfDraftDrafter)
    plain = make_drafter("self-draft", device_type="cpu")
    assert made.needs().max_nodes == plain.needs().max_nodes + 3 * 4
    with pytest.raises(ConfigError, match=r"3 token ids.*n-gram 0 of '7'"):
        make_drafter(f"self-draft:ngram=3,corpus={file}", device_type="cpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a JSON file"),
        ("[1]", "a JSON object"),
        ('{"a": []}', "the key 'a'"),
        ('{"-1": []}', "the key '-1'"),
        ('{"2147483648": []}', "the key '2147483648'"),
        ('{"1": 2}', "the value of '1'"),
        ('{"1": [2]}', "n-gram 0 of '1'"),
        ('{"1": [[1, 2], [1]]}', "n-gram 1 of '1'"),
        ('{"1": [[1, true]]}', "n-gram 0 of '1'"),
        ('{"1": [[1, -2]]}', "n-gram 0 of '1'"),
        ('{"1": [[1, 2147483648]]}', "n-gram 0 of '1'"),
        ("\udcff", "a JSON file"),
    ],
)
def test_a_bad_corpus_names_the_entry(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "corpus.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=message):
        read_corpus(str(file), 2)


def test_a_missing_corpus_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"corpus='.*none\.json'.*No such file"):
        make_drafter(SelfDraftConfig(corpus=str(tmp_path / "none.json")), device_type="cpu")


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (LookaheadConfig, {"level": 2}, "level=2"),
        (LookaheadConfig, {"window": 63}, "window=63.*at most 62"),
        (LookaheadConfig, {"window": 40, "guesses": 40}, "319 rows"),
        (LookaheadConfig, {"guesses": 0}, "guesses=0"),
        (LookaheadConfig, {"faithful": 1}, "faithful=1"),
        (SelfDraftConfig, {"length": 2}, "length=2"),
        (SelfDraftConfig, {"ngram": 6}, "ngram=6.*from 2 to 5"),
        (SelfDraftConfig, {"faithful": None}, "faithful=None"),
        (SelfDraftConfig, {"branches": 64}, "422 rows|359 rows"),
        (SelfDraftConfig, {"ngrams_per_key": 60, "corpus": "x"}, "286 rows"),
        (SelfDraftConfig, {"corpus": 3}, "corpus=3"),
    ],
)
def test_bad_settings_are_named(kind: type, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**values)


@pytest.mark.parametrize("n", range(3, 17))
@pytest.mark.parametrize("columns", [1, 2, 5, 11])
def test_settings_that_pass_are_served(n: int, columns: int) -> None:
    """Both sides count rows alike, a window's that is largest before it is full included."""
    for config in (
        LookaheadConfig(level=n, window=columns, guesses=2),
        SelfDraftConfig(length=n, branches=columns, ngram=2, ngrams_per_key=2),
    ):
        rows = make_drafter(config, device_type="cpu").needs().max_nodes
        assert 0 < rows < 256
