"""TokenRecyclingDrafter against its twin and against plain decoding."""

from __future__ import annotations

from collections import Counter

import pytest
from lookup_driver import SeenStep, check_steps, random_limits, random_model, random_prompt
from reference.ptd_algorithm import NextToken, Settings
from reference.token_recycling import TokenRecycling, static_tree
from reference.toy_models import hashed
from tape import Tape, on_tapes

from ptd_engine._core import InvalidArgument, TokenRecyclingDrafter


def check_request(
    drafter: TokenRecyclingDrafter,
    twin: TokenRecycling,
    model: NextToken,
    prompt: list[int],
    settings: Settings,
    vocabulary: int,
    extra_successors: int = 0,
) -> int:
    twin.begin()

    def observe(step: SeenStep) -> None:
        twin.refresh_step(step.tokens, step.outputs, step.path)
        assert drafter.known_tokens == len(twin.matrix)
        for token in range(vocabulary):
            assert drafter.successors(token) == twin.matrix.get(token, [])

    return check_steps(
        drafter,
        model,
        prompt,
        settings,
        vocabulary=vocabulary,
        propose=lambda text: twin.propose(text[-1]),
        observe=observe,
        observe_prompt=lambda position, output: twin.refresh(prompt[position], output),
        extra_successors=extra_successors,
    )


@on_tapes(examples=500, length=90)
def test_every_step_follows_the_twin(tape: Tape) -> None:
    vocabulary, nodes = tape.between(2, 9), tape.between(1, 20)
    successors, warm = tape.between(1, 8), tape.one_in(2)
    drafter = TokenRecyclingDrafter(nodes, successors, warm)
    twin = TokenRecycling(nodes, successors, warm)
    for _ in range(tape.between(1, 3)):
        prompt = random_prompt(tape, vocabulary)
        settings = random_limits(tape, vocabulary, len(prompt), nodes)
        model = random_model(tape, vocabulary)
        extra = tape.below(3)
        check_request(drafter, twin, model, prompt, settings, vocabulary, extra)


@pytest.mark.parametrize(("nodes", "successors"), [(80, 8), (255, 8), (40, 1), (64, 3), (90, 12)])
def test_the_static_tree_is_that_of_the_twin(nodes: int, successors: int) -> None:
    drafter = TokenRecyclingDrafter(max_candidate_nodes=nodes, successors=successors)
    assert drafter.static_tree == static_tree(nodes, successors)


def test_the_static_tree_has_about_the_published_shape() -> None:
    depths: list[int] = []
    for parent, _ in TokenRecyclingDrafter().static_tree:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    published = {1: 8, 2: 21, 3: 25, 4: 15, 5: 8, 6: 3}
    ours = Counter(depths)
    assert sum(published.values()) == len(depths)
    assert sum(abs(ours[depth] - published.get(depth, 0)) for depth in range(1, 80)) <= 24


def test_a_warm_matrix_saves_steps_and_a_cold_one_forgets() -> None:
    model, settings = hashed(40, 4, 1), Settings(max_new_tokens=60)
    accepted: dict[bool, list[int]] = {}
    for warm in (False, True):
        drafter, twin = TokenRecyclingDrafter(16, 4, warm), TokenRecycling(16, 4, warm)
        accepted[warm] = [
            check_request(drafter, twin, model, [1, 2, 3], settings, 40) for _ in range(3)
        ]
    assert accepted[False] == accepted[False][:1] * 3
    assert accepted[True][0] == accepted[False][0] < accepted[True][1]


def test_a_warm_matrix_has_a_row_a_token_at_most() -> None:
    drafter, twin = TokenRecyclingDrafter(8, 4, warm=True), TokenRecycling(8, 4, True)
    for salt in range(60):
        settings = Settings(max_new_tokens=30)
        check_request(drafter, twin, hashed(25, salt, 2), [salt % 25], settings, 25)
    assert 20 <= drafter.known_tokens <= 25


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_candidate_nodes", 0),
        ("max_candidate_nodes", 256),
        ("successors", 0),
        ("successors", 33),
    ],
)
def test_settings_out_of_range_are_refused(field: str, value: int) -> None:
    with pytest.raises(InvalidArgument, match=f"{field}={value}"):
        TokenRecyclingDrafter(**{field: value})
