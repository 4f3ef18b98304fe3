"""Stop strings: across tokens and steps, several at once, shorter than a token, in a stream."""

from __future__ import annotations

from typing import Any

import pytest

from ptd_engine import ConfigError, SamplingParams

from .conftest import PROMPT, answer, chunks_of, ids_of, read_into, toy

STREAMED = ["a", "<S>", *"bcdefg"]


def test_a_stop_string_early_in_a_block_is_found(blocks: tuple[int, ...]) -> None:
    output = answer(STREAMED, blocks, stop="<S>")
    assert (output.text, output.finish_reason) == ("a", "stop")
    assert output.token_ids == ids_of(STREAMED)[:2]
    assert output.usage.completion_tokens == 2


@pytest.mark.parametrize(
    ("pieces", "stop", "text", "tokens"),
    [
        (["a", "<", "S", ">", "b"], "<S>", "a", 4),  # across tokens
        (["a<", "S>b", "c"], "<S>", "a", 2),
        (["a", "x<S>y", "b"], "<S>", "ax", 2),  # inside a token
        (["<S>", "b"], "<S>", "", 1),  # at the very beginning
        (["a", "..."], "..", "a", 2),  # shorter than the token
        (["a", "...", "b"], "...", "a", 2),
        (["a", "....", "b"], "...", "a", 2),
        (["a", ".", ".", ".", "b"], "...", "a", 4),
        (["a", "<", "<S", ">"], "<S>", "a<", 4),  # a beginning that was none
        (["a", "b", "a", "b", "a", "c", "d"], "abac", "ab", 6),  # one that overlaps the match
        (["a", "b", "c"], "c", "ab", 3),  # by the last token of the budget
        (["a", "<eos>", "b"], "a", "", 1),
        (["a\n", "\n", "b"], "\n\n", "a", 2),
    ],
)
@pytest.mark.parametrize("include", [False, True])
def test_the_text_is_cut_and_the_completing_token_kept(
    pieces: list[str], stop: str, text: str, tokens: int, include: bool, blocks: tuple[int, ...]
) -> None:
    output = answer(pieces, blocks, stop=stop, include_stop_str=include)
    assert output.text == text + stop * include
    assert output.token_ids == ids_of(pieces)[:tokens]
    assert output.finish_reason == "stop"


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "tokens"),
    [
        (["x", "abcd", "e"], ["c", "bc", "bcd", "d"], "xa", 2),  # the earliest in the text
        (["x", "a", "b", "c"], ["bc", "b"], "xa", 3),  # the first to be complete
        (["x", "ab", "c"], ["bcd", "bc"], "xa", 3),
        (["a", "b", "c"], ["zz", "abc", "c"], "", 3),
        (["a", "b", "c", "d"], ["abce", "bcd"], "a", 4),  # a longer beginning that was none
    ],
)
def test_of_several_the_earliest_wins(
    pieces: list[str], stops: list[str], text: str, tokens: int, blocks: tuple[int, ...]
) -> None:
    for order in (stops, stops[::-1]):
        output = answer(pieces, blocks, stop=order)
        assert (output.text, len(output.token_ids)) == (text, tokens)


def test_of_those_that_begin_together_the_longest_wins(blocks: tuple[int, ...]) -> None:
    for stops in (["b", "bcd", "bc"], ["bcd", "bc", "b"]):
        output = answer(["a", "bcde"], blocks, stop=stops, include_stop_str=True)
        assert output.text == "abcd"


def test_spaces_of_sentencepiece_tokens_count(blocks: tuple[int, ...]) -> None:
    words = ["▁with", "▁2", "▁pro", "tons", ")", ".", "▁highly", "▁", "ion", "ized", "▁gas"]
    stops = ["atoms with 11 protons", "ionized"]
    output = answer(words, blocks, kind="sentencepiece", stop=stops)
    assert output.text == "with 2 protons). highly "
    assert len(output.token_ids) == len(words) - 1
    spaced = answer(words, blocks, kind="sentencepiece", stop=["highly  ion", " highly ion"])
    assert (spaced.text, spaced.finish_reason) == ("with 2 protons).", "stop")


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
def test_a_character_of_several_tokens_is_found_with_its_last_byte(
    kind: str, blocks: tuple[int, ...]
) -> None:
    raw = "世".encode()
    spelled = {"bytes": [chr(b) for b in raw], "sentencepiece": [f"<0x{b:02X}>" for b in raw]}
    pieces = ["a", *spelled[kind], "b"]
    output = answer(pieces, blocks, kind=kind, stop="世")
    assert (output.text, output.finish_reason, len(output.token_ids)) == ("a", "stop", 4)
    kept = answer(pieces, blocks, kind=kind, stop="世", include_stop_str=True)
    assert (kept.text, len(kept.token_ids)) == ("a世", 4)


def test_an_unfinished_character_is_no_replacement_character(blocks: tuple[int, ...]) -> None:
    pieces = ["a", "\xe4", "\xb8", "\x96", "b"]
    whole = answer(pieces, blocks, kind="bytes", stop="\ufffd")
    assert (whole.text, whole.finish_reason) == ("a世b", "length")
    broken = answer(["a", "\xe4", "b", "c"], blocks, kind="bytes", stop="\ufffd")
    assert (broken.text, broken.finish_reason, len(broken.token_ids)) == ("a", "stop", 3)


def test_text_that_may_begin_a_stop_string_waits_until_it_is_decided() -> None:
    pieces = ["a", "<", "S", "b", "<", "S", ">", "c"]
    chunks, output = chunks_of(toy(pieces, (0,)), SamplingParams(stop="<S>"))
    assert [chunk.text for chunk in chunks] == ["a", "", "", "<Sb", "", "", "", ""]
    assert output.text == "a<Sb"


def test_text_that_was_kept_back_comes_at_the_end(blocks: tuple[int, ...]) -> None:
    for pieces in (["a", "<", "S"], ["a", "<", "S", "<eos>"]):
        params = SamplingParams(stop=["<S>", "S!"], max_new_tokens=len(pieces))
        chunks, output = chunks_of(toy(pieces, blocks), params)
        assert output.text == "a<S"
        assert chunks[-1].text == "<S"


def test_an_unfinished_character_at_the_end_comes_once(blocks: tuple[int, ...]) -> None:
    llm = toy(["a", "\xf0", "\x9f", "\x98", "\x80"], blocks, kind="bytes")
    for stop in ((), "x"):
        chunks, output = chunks_of(llm, SamplingParams(max_new_tokens=3, stop=stop))
        assert (output.text, output.finish_reason) == ("a\ufffd", "length")
        assert chunks[-1].text == "\ufffd"


@pytest.mark.parametrize("include", [False, True])
def test_no_chunk_carries_text_after_the_stop(include: bool, blocks: tuple[int, ...]) -> None:
    params = SamplingParams(stop="<S>", include_stop_str=include)
    chunks, output = chunks_of(toy(STREAMED, blocks), params)
    joined = "".join(chunk.text for chunk in chunks)
    assert joined == output.text == "a" + "<S>" * include
    assert sum(len(chunk.token_ids) for chunk in chunks) == 2


def test_a_stop_string_and_a_stop_id_at_one_token_cut_the_text(blocks: tuple[int, ...]) -> None:
    named = ids_of(STREAMED)[1:2]
    output = answer(STREAMED, blocks, stop="<S>", stop_token_ids=named)
    assert (output.text, output.finish_reason, len(output.token_ids)) == ("a", "stop", 2)
    by_id = answer(STREAMED, blocks, stop="b", stop_token_ids=named)
    assert (by_id.text, by_id.finish_reason) == ("a<S>", "stop")


@pytest.mark.parametrize("stop", ["<eos>", ["zz", "<eos>"]])
@pytest.mark.parametrize("include", [False, True])
def test_the_spelling_of_a_special_token_stops_at_that_token(
    stop: str | list[str], include: bool, blocks: tuple[int, ...]
) -> None:
    pieces = ["a", "<eos>", "b"]
    settings: dict[str, Any] = {"ignore_eos": True, "include_stop_str": include}
    free = answer(pieces, blocks, **settings)
    assert (free.text, free.finish_reason) == ("ab", "length")
    output = answer(pieces, blocks, stop=stop, **settings)
    assert (output.text, output.finish_reason) == ("a", "stop")  # it has no text to include
    assert output.token_ids == ids_of(pieces)[:2]
    # Spelled out in ordinary tokens it is a text like any other.
    spelled = answer(["a", "<", "eos", ">", "b"], blocks, stop=stop)
    assert (spelled.text, len(spelled.token_ids)) == ("a", 4)
    # What may begin another stop string is let go where the special token ends the output.
    begun = answer(["a", "z", "<eos>", "z"], blocks, stop=["zz", "<eos>"], ignore_eos=True)
    assert (begun.text, begun.finish_reason) == ("az", "stop")


def test_a_special_token_inside_a_stop_string_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    output = answer(["a", "b", "<eos>", "c"], stop="b<eos>", ignore_eos=True)
    assert (output.text, output.finish_reason) == ("abc", "length")
    (record,) = caplog.records
    assert "'b<eos>'" in record.getMessage() and "stop_token_ids=[2]" in record.getMessage()
    caplog.clear()
    answer(["a", "b"], stop=["<eos>", "<eo", "b"])
    assert not caplog.records


def test_a_stop_string_that_never_comes_changes_nothing(blocks: tuple[int, ...]) -> None:
    without, watched = answer(STREAMED, blocks), answer(STREAMED, blocks, stop=["zz", "bd"])
    assert (watched.text, watched.token_ids) == (without.text, without.token_ids)
    assert watched.stats.steps == without.stats.steps


def test_a_fault_in_the_check_fails_the_request_only(blocks: tuple[int, ...]) -> None:
    llm = toy(STREAMED, blocks)
    expected = llm.generate([PROMPT], SamplingParams(max_new_tokens=6))
    for fault_at in range(6):
        asked: list[int] = []

        def check(token: int, asked: list[int] = asked, fault_at: int = fault_at) -> bool:
            asked.append(token)
            if len(asked) > fault_at:
                raise ZeroDivisionError("the check's own fault")
            return False

        generation = llm.engine.generate([PROMPT], SamplingParams(), check)
        handed_out: list[int] = []
        with pytest.raises(ZeroDivisionError, match="own fault"):
            read_into(handed_out, generation)
        assert generation.token_ids == handed_out == ids_of(STREAMED)[: len(handed_out)]
        assert generation.stats.tokens == len(handed_out)
        assert generation.finish_reason is None
        again = llm.generate([PROMPT], SamplingParams(max_new_tokens=6))
        assert (again.token_ids, again.stats.steps) == (expected.token_ids, expected.stats.steps)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"stop": ""}, "stop=''"),
        ({"stop": ["a", ""]}, r"stop\[1\]=''"),
        ({"stop": [2]}, r"stop\[0\]=2.*stop_token_ids"),
        ({"stop": b"a"}, "stop=b'a'"),
        ({"stop": 2}, "stop=2"),
        ({"include_stop_str": 1}, "include_stop_str=1"),
        ({"ignore_eos": "no"}, "ignore_eos='no'"),
        ({"max_new_tokens": "5"}, "max_new_tokens='5'.*context limit"),
    ],
)
def test_bad_values_are_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SamplingParams(**settings)


def test_one_string_and_a_list_of_one_are_the_same() -> None:
    for stop in ("<S>", ["<S>"], ("<S>",)):
        assert SamplingParams(stop=stop).stop_strings == ("<S>",)
        assert answer(STREAMED, stop=stop).text == "a"
    assert SamplingParams().stop_strings == ()


def test_an_engine_without_text_refuses_stop_strings() -> None:
    llm = toy(["a"])
    with pytest.raises(ConfigError, match="stop='x'.*stop_check"):
        llm.engine.generate([PROMPT], SamplingParams(stop="x"))
