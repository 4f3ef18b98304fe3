"""Entities of a prompt's text, and the token runs that hold them."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptd_engine.text import EntitySeeds, Tokenizer
from ptd_engine.text.entities import MOST_TOKENS, find_entities, load_tagger


def found(text: str) -> list[str]:
    return [text[begin:end] for begin, end in find_entities(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Write a poem about Hawaii and the Grand Canyon.", ["Hawaii", "Grand Canyon"]),
        ("He buys a house for $80,000, 60% of 3.14 on 2024-01-31.",
         ["$80,000", "60%", "3.14", "2024-01-31"]),
        ("Call even_bits(n) or obj.method, not helloWorld.",
         ["even_bits", "obj.method", "helloWorld"]),
        ('Say "good bye" and `x` or \'yes\'.', ["good bye", "x", "yes"]),
        ("It isn't Bob's dog.", ["Bob's"]),
        ("The cat. The dog.", []),
        ("What is it? NASA knows. Paris is big; I saw Paris.", ["NASA", "Paris", "Paris"]),
        ("Bank of England, Ludwig van Beethoven", ["Bank of England", "Ludwig van Beethoven"]),
        ("Öl und Zürich", ["Zürich"]),
        ('"one\ntwo"', []),
        ("", []),
    ],
)  # fmt: skip
def test_patterns_find_what_names_something(text: str, expected: list[str]) -> None:
    assert found(text) == expected


@settings(deadline=None)
@given(st.text(alphabet="Ab c.\"'`1_(é,\n“”", max_size=40))
def test_spans_lie_in_the_text_in_order_without_overlap(text: str) -> None:
    end_before = 0
    for begin, end in find_entities(text):
        assert end_before <= begin < end <= len(text)
        end_before = end


@pytest.fixture(params=["byte_level", "sentencepiece_like"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    chosen = request.getfixturevalue(request.param)
    assert isinstance(chosen, Tokenizer)
    return chosen


def seeds(tokenizer: Tokenizer, text: str, **options: Any) -> list[str]:
    """The text of each chain."""
    source = EntitySeeds(tokenizer, options.get("tagger", find_entities))
    return [tokenizer.decode(chain) for chain in source(tokenizer.encode(text))]


def test_chains_hold_the_entities_the_last_first_and_once(tokenizer: Tokenizer) -> None:
    text = "go to Paris and 345 dogs of Paris or Rome now"
    chains = seeds(tokenizer, text)
    # A token may reach over an entity's border, so a chain holds it, and hardly more.
    for chain, name in zip(chains, ["Rome", "Paris", "345"], strict=True):
        assert name in chain
        assert len(chain) <= len(name) + 4


def test_every_token_of_a_chain_is_one_of_the_prompt(tokenizer: Tokenizer) -> None:
    text = "naïve 'über 😀' or 世界 “你好” ñandú 12"
    ids = tokenizer.encode(text)
    chains = EntitySeeds(tokenizer, find_entities)(ids)
    assert len(chains) == 3
    for chain in chains:
        runs = [ids[i : i + len(chain)] for i in range(len(ids))]
        assert chain in runs
    decoded = [tokenizer.decode(chain) for chain in chains]
    assert all(name in text for name, text in zip(["12", "你好", "über 😀"], decoded, strict=True))


def test_special_tokens_are_no_part_of_a_chain(byte_level: Tokenizer) -> None:
    special = byte_level.special_tokens["<|im_start|>"]
    ids = [special, *byte_level.encode("see Rome"), special, special]
    chains = EntitySeeds(byte_level, lambda text: [(0, len(text))])(ids)
    assert chains == [byte_level.encode("see Rome")]


def test_only_the_end_of_a_long_prompt_is_read(byte_level: Tokenizer) -> None:
    read: list[str] = []

    def tagger(text: str) -> list[tuple[int, int]]:
        read.append(text)
        return []

    ids = byte_level.encode("a ") * (2 * MOST_TOKENS)
    assert EntitySeeds(byte_level, tagger)(ids) == []
    assert read == [byte_level.decode(ids[-MOST_TOKENS:])]


def fake_spacy(**pipelines: list[str]) -> SimpleNamespace:
    """A spaCy with these pipelines (their parts' names), of which "ner" finds the word "it"."""

    def load(name: str) -> Any:
        def pipeline(text: str) -> SimpleNamespace:
            at = text.find("it")
            return SimpleNamespace(ents=[SimpleNamespace(start_char=at, end_char=at + 2)])

        pipeline.pipe_names = pipelines[name]  # type: ignore[attr-defined]
        return pipeline

    util = SimpleNamespace(get_installed_models=lambda: list(pipelines))
    return SimpleNamespace(util=util, load=load)


def test_spacy_serves_where_a_pipeline_with_entities_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "spacy", fake_spacy(b_parser=["parser"], c_ner=["ner"]))
    assert load_tagger()("say it to Rome") == [(4, 6)]
    monkeypatch.setitem(sys.modules, "spacy", fake_spacy(b_parser=["parser"]))
    assert load_tagger() is find_entities
    monkeypatch.setitem(sys.modules, "spacy", None)  # as if it were not installed
    assert load_tagger() is find_entities


def test_a_spacy_that_does_not_load_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def torn(name: str) -> Any:
        raise OSError("no meta.json")

    broken = fake_spacy(a=["ner"])
    broken.load = torn
    monkeypatch.setitem(sys.modules, "spacy", broken)
    with caplog.at_level(logging.WARNING):
        assert load_tagger() is find_entities
    assert "no meta.json" in caplog.text
