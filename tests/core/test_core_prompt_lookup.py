"""PromptLookupDrafter against its twin, which searches the text, and against plain decoding."""

from __future__ import annotations

import random

import pytest
from lookup_driver import check_steps, random_limits, random_model, random_prompt
from reference import prompt_lookup
from reference.node import Row
from reference.ptd_algorithm import Settings
from reference.toy_models import hashed, lookup_last
from tape import Tape, on_tapes

from ptd_engine._core import InvalidArgument, PromptLookupDrafter


def twin(max_ngram: int, nodes: int) -> dict[str, object]:
    def propose(text: list[int]) -> list[Row]:
        chain = prompt_lookup.propose(text, max_ngram, nodes)
        return [(token, row - 1) for row, token in enumerate(chain)]

    return {"propose": propose, "observe": lambda step: None}


@on_tapes(examples=600, length=80)
def test_every_step_proposes_what_a_search_of_the_text_finds(tape: Tape) -> None:
    vocabulary, max_ngram, nodes = tape.between(2, 7), tape.between(1, 4), tape.between(1, 12)
    drafter = PromptLookupDrafter(max_ngram=max_ngram, max_candidate_nodes=nodes)
    for _ in range(tape.between(1, 2)):  # the second request begins anew
        prompt = random_prompt(tape, vocabulary)
        settings = random_limits(tape, vocabulary, len(prompt), nodes)
        model = random_model(tape, vocabulary)
        check_steps(
            drafter, model, prompt, settings, vocabulary=vocabulary, **twin(max_ngram, nodes)
        )


def test_a_repeating_text_is_copied() -> None:
    cycle = lookup_last([1, 2, 3, 4, 0])
    drafter = PromptLookupDrafter()
    settings = Settings(max_new_tokens=100)
    assert check_steps(drafter, cycle, [0], settings, vocabulary=5, **twin(3, 10)) > 70


def test_the_longest_ngram_goes_first_and_of_its_occurrences_the_first() -> None:
    text = [1, 2, 3, 7, 2, 3, 8, 3, 9, 1, 2, 3]
    assert prompt_lookup.propose(text, 3, 4) == [7, 2, 3, 8]
    assert prompt_lookup.propose([*text[:-3], 5, 2, 3], 3, 2) == [7, 2]
    assert prompt_lookup.propose([*text[:-3], 6, 3], 3, 1) == [7]
    assert prompt_lookup.propose([4, 4], 3, 9) == [4]
    assert prompt_lookup.propose([4], 3, 9) == []
    for end in range(1, len(text) + 1):
        settings = Settings(max_new_tokens=1)
        drafter = PromptLookupDrafter()
        check_steps(drafter, hashed(10, 1, 1), text[:end], settings, vocabulary=10, **twin(3, 10))


def test_the_table_holds_the_text_and_no_more() -> None:
    draw = random.Random(3)
    drafter = PromptLookupDrafter(max_ngram=3)
    prompt = [draw.randrange(50) for _ in range(300)]
    settings = Settings(max_new_tokens=40)
    for text in (prompt, prompt[:5], prompt):
        model = hashed(50, 3, 2)
        check_steps(drafter, model, text, settings, vocabulary=50, **twin(3, 10))
        assert 0 < drafter.indexed_ngrams <= 3 * (len(text) + 40)


@pytest.mark.parametrize("field", ["max_ngram", "max_candidate_nodes"])
@pytest.mark.parametrize("value", [0, -1, 65])
def test_settings_out_of_range_are_refused(field: str, value: int) -> None:
    with pytest.raises(InvalidArgument, match=f"{field}={value}"):
        PromptLookupDrafter(**{field: value})
