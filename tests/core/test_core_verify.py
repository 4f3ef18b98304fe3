"""Verification walks and Philox: the C++ against the reference and published vectors."""

from __future__ import annotations

import numpy as np
import pytest
from reference.philox import philox4x32 as reference_philox
from reference.philox import philox_uniform as reference_uniform
from reference.verification import verify_recursive as reference_recursive
from reference.verification import verify_walk as reference_walk
from tape import Tape, on_tapes

from ptd_engine._core import philox4x32, philox_uniform, verify_recursive, verify_walk


def random_tree(tape: Tape, vocabulary: int, rows: int) -> tuple[list[int], list[int]]:
    """Any tree with parent < child, or one in pre-order; siblings may hold the same token."""
    tokens = [tape.below(vocabulary) for _ in range(rows)]
    if tape.below(2):
        return tokens, [-1, *(tape.below(row) for row in range(1, rows))]
    parents, open_rows = [-1], [0]
    for row in range(1, rows):
        del open_rows[1 + tape.below(len(open_rows)) :]
        parents.append(open_rows[-1])
        open_rows.append(row)
    return tokens, parents


@on_tapes(examples=1500, length=100)
def test_walk_follows_the_reference(tape: Tape) -> None:
    vocabulary, rows = tape.between(1, 3), tape.between(1, 24)
    n_verify = tape.between(1, rows)
    tokens, parents = random_tree(tape, vocabulary, rows)
    next_tokens = [tape.below(vocabulary) for _ in range(rows)]
    path = verify_walk(tokens, parents, next_tokens, n_verify)
    expected = reference_walk(tokens, parents, next_tokens, n_verify)
    assert path == expected
    assert all(0 < row < n_verify for row in path)
    for above, row in zip([0, *path], path, strict=False):
        assert parents[row] == above
        assert tokens[row] == next_tokens[above]


def test_among_equal_chains_the_longest_match_wins_then_the_lowest_row() -> None:
    tokens, parents = [9, 5, 6, 5, 6, 7, 5, 6, 7], [-1, 0, 1, 0, 3, 4, 0, 6, 7]
    follow = {9: 5, 5: 6, 6: 7, 7: 8}
    next_tokens = [follow[token] for token in tokens]
    assert verify_walk(tokens, parents, next_tokens, 9) == [3, 4, 5]
    assert verify_walk(tokens, parents, next_tokens, 3) == [1, 2]
    assert verify_walk(tokens, parents, next_tokens, 1) == []


@on_tapes(examples=1200, length=120)
def test_recursive_walk_follows_the_reference(tape: Tape) -> None:
    vocabulary, rows = tape.between(1, 5), tape.between(1, 10)
    n_verify = tape.between(1, rows)
    tokens, parents = random_tree(tape, vocabulary, rows)
    seen: set[tuple[int, int]] = set()
    for row in range(rows):  # merged siblings only: a second chance has no mass and needs no draw
        if (parents[row], tokens[row]) in seen:
            n_verify = min(n_verify, row)
        seen.add((parents[row], tokens[row]))
    weights = np.array(
        [[1 + tape.below(9) for _ in range(vocabulary)] for _ in range(rows)], np.float64
    )
    probs = weights / weights.sum(axis=1, keepdims=True)
    numbers = [tape.unit() for _ in range(rows + 30)]
    drawn: list[float] = []
    consumed: list[tuple[int, int]] = []

    def draw_of_core(depth: int, k: int) -> float:
        consumed.append((depth, k))
        drawn.append(numbers[len(drawn)])
        return drawn[-1]

    result = verify_recursive(tokens, parents, n_verify, probs, draw_of_core)
    replay = iter(numbers)
    expected = reference_recursive(tokens, parents, n_verify, probs.tolist(), lambda: next(replay))
    assert result == expected
    assert next(replay) == numbers[len(drawn)]  # both used the same count of numbers
    assert len(set(consumed)) == len(consumed)  # no number is used twice


@on_tapes(examples=600, length=120)
def test_recursive_walk_with_impossible_tokens(tape: Tape) -> None:
    """Zeros in the distributions, and one number a depth: it does not matter which draw it is."""
    vocabulary, rows = tape.between(2, 5), tape.between(1, 10)
    tokens, parents = random_tree(tape, vocabulary, rows)
    weights = np.array(
        [[tape.below(3) for _ in range(vocabulary)] for _ in range(rows)], np.float64
    )
    weights[:, 0] += weights.sum(axis=1) == 0
    probs = weights / weights.sum(axis=1, keepdims=True)
    number = tape.below(4) / 4
    path, last = verify_recursive(tokens, parents, rows, probs, lambda depth, k: number)
    expected = reference_recursive(tokens, parents, rows, probs.tolist(), lambda: number)
    assert (path, last) == expected
    for above, row in zip([0, *path], path, strict=False):
        assert probs[above, tokens[row]] > 0
    assert probs[path[-1] if path else 0, last] > 0


def test_a_child_of_probability_zero_is_not_accepted_by_r_zero() -> None:
    probs = np.array([[0.0, 1.0], [0.5, 0.5]])
    assert verify_recursive([9, 0], [-1, 0], 2, probs, lambda depth, k: 0.0) == ([], 1)


def test_children_that_hold_all_the_mass_are_not_divided_by_zero() -> None:
    probs = np.array([[0.5, 0.5, 0.0]] * 3)
    almost_one = 1 - 2.0**-24
    path, last = verify_recursive([9, 0, 1], [-1, 0, 0], 3, probs, lambda depth, k: almost_one)
    assert path == [2]
    assert last == 1
    # The mass left is 1 - 2^-53 by rounding: a number above it still accepts the only child.
    short = np.array([[1 - 2.0**-53, 0.0]] * 2)
    path, _ = verify_recursive([9, 0], [-1, 0], 2, short, lambda depth, k: 1 - 2.0**-53)
    assert path == [1]


KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_published_words(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: str
) -> None:
    expected = [int(word, 16) for word in words.split()]
    assert list(reference_philox(counter, key)) == expected
    assert philox4x32(counter, key) == expected


@on_tapes(examples=300, length=24)
def test_uniforms_follow_the_reference(tape: Tape) -> None:
    seed = sum(tape.below(256) << (8 * i) for i in range(8))
    position = sum(tape.below(256) << (8 * i) for i in range(tape.between(1, 8)))
    draw = tape.below(256)
    value = philox_uniform(seed, position, draw)
    assert value == reference_uniform(seed, position, draw)
    assert 0.0 <= value < 1.0
    assert value * 2**24 == int(value * 2**24)
