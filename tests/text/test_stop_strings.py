"""Stop strings over real decoders, against a search in the decoding of every prefix."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptd_engine.text import StopStrings, Tokenizer


def expected(tokenizer: Tokenizer, ids: list[int], strings: list[str]) -> tuple[str, int | None]:
    """The text in front of the first match, and how many tokens it took; None without a match."""
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count])
        found = [(text.find(s), -len(s)) for s in strings if s in text]
        if found:
            return text[: min(found)[0]], count
    return tokenizer.decode(ids), None


@pytest.fixture(params=["byte_level", "sentencepiece_like"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Tokenizer)
    return found


def watch(
    tokenizer: Tokenizer, ids: list[int], strings: list[str], steps: list[int]
) -> tuple[str, int | None, list[str]]:
    """(text, tokens to the stop, chunks) when steps bring that many tokens each, repeated."""
    stops = StopStrings(tokenizer.decode_stream(), strings)
    chunks: list[str] = []
    left = steps[0]
    for taken, token in enumerate(ids, start=1):
        stopped = stops.stops_at(token)
        left -= 1
        if stopped or left == 0:
            chunks.append(stops.take())
            left = steps[len(chunks) % len(steps)]
        if stopped:
            return "".join([*chunks, stops.finish()]), taken, chunks
    chunks.append(stops.finish())
    return "".join(chunks), None, chunks


def test_every_output_ends_where_a_search_in_its_prefixes_says(tokenizer: Tokenizer) -> None:
    @settings(settings.get_profile("ci"), max_examples=300)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        words = data.draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8))
        ids = tokenizer.encode("".join(words), add_special_tokens=False)
        if data.draw(st.booleans()):  # any ids: broken characters, special tokens
            ids = data.draw(st.lists(st.integers(0, len(tokenizer.hf) - 1), max_size=12)) + ids[:4]
        text = tokenizer.decode(ids)
        begin = data.draw(st.integers(0, max(0, len(text) - 1)))
        cut = text[begin : begin + data.draw(st.integers(1, 6))]
        drawn = [cut, *data.draw(st.lists(st.sampled_from(STRINGS), max_size=3))]
        strings = [s for s in drawn if s and "\ufffd" not in s] or ["zz"]
        steps = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
        found, count, chunks = watch(tokenizer, ids, strings, steps)
        assert (found, count) == expected(tokenizer, ids, strings)
        assert all("\ufffd" not in chunk for chunk in chunks) or "\ufffd" in found

    check()


WORDS = ["the ", "dog", "...", "..", "世界", "😀", " ", "hello", "a.b", "\n\n", "é", "<S>", "0"]
STRINGS = ["..", "...", "....", "g..", "世", "界", "😀", "the dog", " ", "\n", "<S>", "lo", "zz"]


def test_nothing_is_released_twice_or_lost_when_taken_late(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the dog ... and 世界 😀.", add_special_tokens=False)
    stops = StopStrings(tokenizer.decode_stream(), ["zzz", "....", "dog ...!"])
    assert not any(stops.stops_at(token) for token in ids)
    assert stops.take() + stops.take() + stops.finish() + stops.finish() == tokenizer.decode(ids)


def test_a_long_stop_string_holds_back_only_what_may_become_it(byte_level: Tokenizer) -> None:
    (letter,) = byte_level.encode("x", add_special_tokens=False)
    stops = StopStrings(byte_level.decode_stream(), ["x" * 2000 + "y"])
    assert not any(stops.stops_at(letter) for _ in range(2500))
    assert stops.take() == "x" * 500
    assert stops.finish() == "x" * 2000
