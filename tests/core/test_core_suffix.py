"""SuffixDrafter against its twin, which counts in the text itself, and against plain decoding."""

from __future__ import annotations

from typing import Any

import pytest
from lookup_driver import SeenStep, check_steps, random_limits, random_model, random_prompt
from reference.ptd_algorithm import NextToken, Settings
from reference.suffix import Suffix, continuations
from reference.toy_models import hashed, lookup_last
from tape import Tape, on_tapes

from ptd_engine._core import InvalidArgument, SuffixDrafter

DEFAULTS: dict[str, Any] = {
    "max_depth": 64,
    "factor": 1.0,
    "min_probability": 0.1,
    "as_tree": True,
    "index_tokens": 0,
}


def pair(nodes: int, **options: Any) -> tuple[SuffixDrafter, Suffix]:
    settings = {**DEFAULTS, **options}
    return SuffixDrafter(max_candidate_nodes=nodes, **settings), Suffix(nodes, **settings)


def check_request(
    drafters: tuple[SuffixDrafter, Suffix],
    model: NextToken,
    prompt: list[int],
    settings: Settings,
    vocabulary: int,
) -> int:
    drafter, twin = drafters
    room = min(settings.max_rows - 1, twin.max_nodes)
    twin.begin(prompt)

    def observe(step: SeenStep) -> None:
        twin.append(step.emitted)
        assert drafter.text_nodes <= 1 + 2 * len(twin.text)
        kept = sum(map(len, [*twin.young, *twin.old]))
        assert drafter.indexed_tokens == kept <= twin.index_tokens

    return check_steps(
        drafter,
        model,
        prompt,
        settings,
        vocabulary=vocabulary,
        propose=lambda text: twin.propose(room),
        observe=observe,
    )


@on_tapes(examples=500, length=90)
def test_every_step_proposes_what_counting_finds(tape: Tape) -> None:
    vocabulary, nodes = tape.between(1, 6), tape.between(1, 20)
    drafters = pair(
        nodes,
        max_depth=tape.between(2, 12),
        factor=tape.between(1, 12) / 4,
        min_probability=tape.below(6) / 10,
        as_tree=tape.one_in(2),
        index_tokens=tape.below(60),
    )
    for _ in range(tape.between(1, 3)):
        prompt = random_prompt(tape, vocabulary)
        settings = random_limits(tape, vocabulary, len(prompt), nodes)
        check_request(drafters, random_model(tape, vocabulary), prompt, settings, vocabulary)


def test_one_token_over_and_over() -> None:
    """Every suffix is a prefix of the next longer one: the places in the tree are all nested."""
    for depth in (2, 3, 7, 64):
        drafters = pair(40, max_depth=depth)
        settings = Settings(max_new_tokens=60)
        check_request(drafters, lookup_last([0]), [0, 0], settings, 1)


def test_a_repeating_text_is_drafted_as_far_as_the_match_is_long() -> None:
    cycle = lookup_last([1, 2, 3, 4, 0])
    accepted = check_request(pair(32), cycle, [0], Settings(max_new_tokens=100), 5)
    assert accepted > 75


def test_of_equally_frequent_continuations_the_last_one_is_the_first() -> None:
    assert continuations([[1, 5, 1, 6, 1, 7, 1, 6, 1, 5, 1]], [1]) == [(5, 2), (6, 2), (7, 1)]


def test_earlier_outputs_are_found_again_and_only_if_asked_for() -> None:
    model, settings = hashed(200, 4, 2), Settings(max_new_tokens=60)
    for index_tokens in (0, 2000):
        drafters = pair(32, index_tokens=index_tokens)
        first = check_request(drafters, model, [1, 2, 3], settings, 200)
        second = check_request(drafters, model, [1, 2, 3], settings, 200)
        if index_tokens == 0:
            assert first == second
        else:
            assert second > first + 20


def test_the_index_keeps_to_its_tokens_and_old_ones_go_first() -> None:
    drafters = pair(8, index_tokens=100, max_depth=8)
    for salt in range(12):
        settings = Settings(max_new_tokens=20 + 7 * (salt % 5))
        check_request(drafters, hashed(30, salt, 2), [salt], settings, 30)
    assert drafters[0].indexed_tokens > 50


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_candidate_nodes", 0),
        ("max_candidate_nodes", 256),
        ("max_depth", 1),
        ("max_depth", 65),
        ("index_tokens", -1),
        ("factor", 0.0),
        ("factor", float("nan")),
        ("min_probability", -0.5),
        ("min_probability", 1.5),
    ],
)
def test_settings_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidArgument, match=f"{field}="):
        SuffixDrafter(**{field: value})
