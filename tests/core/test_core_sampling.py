"""Sampling: both verification walks emit the target law, and speculation changes no token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt
import pytest
from reference.chi_square import p_value
from reference.philox import philox_uniform as reference_uniform
from reference.toy_models import hashed
from reference.verification import accept_child, accept_child_as_printed, inverse_cdf
from session_driver import FixedTrees, ToyRunner

from ptd_engine._core import (
    AutoregressiveDrafter,
    Drafter,
    PTDDrafter,
    Session,
    philox_uniform,
    verify_recursive,
    verify_walk,
)

VOCABULARY = 8
DRAWS = 200_000


@dataclass(frozen=True)
class Case:
    """A candidate tree and the processed distribution of each of its rows, [rows, VOCABULARY]."""

    name: str
    tokens: list[int]
    parents: list[int]
    probs: npt.NDArray[np.float64]

    def children(self, row: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == row]

    def law(self) -> dict[tuple[int, ...], float]:
        """Probability of each output: descend while the drawn token is a child, then stop."""
        law: dict[tuple[int, ...], float] = {}

        def visit(row: int, prefix: tuple[int, ...], probability: float) -> None:
            at = {self.tokens[child]: child for child in self.children(row)}
            for token in range(VOCABULARY):
                joint = probability * float(self.probs[row, token])
                if token in at:
                    visit(at[token], (*prefix, token), joint)
                else:
                    law[(*prefix, token)] = joint

        visit(0, (), 1.0)
        return law


def rows_of(*rows: list[float]) -> npt.NDArray[np.float64]:
    return np.array([[*row, *[0.0] * (VOCABULARY - len(row))] for row in rows])


def processed_rows(seed: int, count: int, kept: int) -> npt.NDArray[np.float64]:
    """Random distributions of which only the `kept` likeliest tokens are left, as by top-k."""
    probs = np.random.default_rng(seed).dirichlet(np.full(VOCABULARY, 0.7), count)
    probs[probs < np.sort(probs, axis=1)[:, -kept][:, None]] = 0.0
    return probs / probs.sum(axis=1, keepdims=True)


CASES = [
    Case("two_of_three", [7, 0, 1], [-1, 0, 0], rows_of([0.5, 0.3, 0.2], [1.0], [0.5, 0.5])),
    Case("all_the_mass", [7, 1, 0], [-1, 0, 0], rows_of([0.6, 0.4], [0.1, 0.9], [1.0])),
    Case("impossible", [7, 2, 0, 5, 1], [-1, 0, 0, 0, 2], rows_of(*[[0.45, 0.55]] * 5)),
    Case(
        "deep",
        [7, 0, 1, 2, 3, 4, 0, 1, 5],
        [-1, 0, 0, 0, 1, 1, 2, 4, 6],
        processed_rows(3, 9, 8),
    ),
    Case("top_3", [7, 6, 1, 2, 3, 4], [-1, 0, 0, 0, 2, 2], processed_rows(11, 6, 3)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_recursive_walk_emits_the_target_law(case: Case) -> None:
    numbers = iter(np.random.default_rng(5).random(DRAWS * 8).tolist())
    counts: Counter[tuple[int, ...]] = Counter()
    tokens, parents, probs, rows = case.tokens, case.parents, case.probs, len(case.tokens)

    def draw(depth: int, k: int) -> float:
        return next(numbers)

    for _ in range(DRAWS):
        path, last = verify_recursive(tokens, parents, rows, probs, draw)
        counts[(*path, last)] += 1
    outputs: Counter[tuple[int, ...]] = Counter()
    for (*path, last), times in counts.items():
        outputs[(*(tokens[row] for row in path), last)] += times
    assert p_value(outputs, case.law()) > 1e-4


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_coupled_walk_emits_the_target_law(case: Case) -> None:
    """y_n by inverse CDF of the uniform of n's position, then the walk: vectorised over seeds."""
    rows = len(case.tokens)
    depths = [0]
    for parent in case.parents[1:]:
        depths.append(depths[parent] + 1)
    uniforms = np.array(
        [[philox_uniform(seed, 41 + d) for seed in range(DRAWS)] for d in range(max(depths) + 1)]
    )
    drawn = np.empty((DRAWS, rows), np.int64)
    for row in range(rows):
        cumulative = np.cumsum(case.probs[row])
        target = uniforms[depths[row]] * cumulative[-1]
        drawn[:, row] = np.searchsorted(cumulative, target, side="right")
    outputs: Counter[tuple[int, ...]] = Counter()
    for next_tokens, times in zip(*np.unique(drawn, axis=0, return_counts=True), strict=True):
        path = verify_walk(case.tokens, case.parents, next_tokens.tolist(), rows)
        last = int(next_tokens[path[-1] if path else 0])
        outputs[(*(case.tokens[row] for row in path), last)] += int(times)
    assert p_value(outputs, case.law()) > 1e-4


def test_the_check_itself_finds_the_bias_of_the_printed_algorithm() -> None:
    numbers = iter(np.random.default_rng(5).random(40_000).tolist())
    printed: Counter[tuple[int, ...]] = Counter()
    for _ in range(20_000):
        _, token = accept_child_as_printed([0.5, 0.3, 0.2], [0, 1], lambda: next(numbers))
        printed[(token,)] += 1
    assert printed[(2,)] == 0
    assert printed[(1,)] / 20_000 == pytest.approx(0.5, abs=0.02)
    assert p_value(printed, {(0,): 0.5, (1,): 0.3, (2,): 0.2}) < 1e-12
    assert accept_child_as_printed([0.0, 1.0], [0], lambda: 0.0) == (0, 0)


def distribution(context: list[int]) -> list[float]:
    """A fixed random law over the vocabulary for each pair of last tokens."""
    key = hashed(1 << 20, 9, 2)(context)
    weights = [1 + hashed(50, 3, 1)([key + token]) for token in range(VOCABULARY)]
    return [weight / sum(weights) for weight in weights]


def sampled_run(drafter: Drafter, seed: int, recursive: bool = False) -> Iterator[Session]:
    """Steps of a session at temperature 1 in which the toy model draws from `distribution`."""
    prompt = [1, 2, 3, 1, 2]
    session = Session(
        prompt, drafter, max_seq_len=300, max_new_tokens=60, temperature=1.0, seed=seed
    )
    runner = ToyRunner(session, prompt)
    while not session.finished:
        output = np.zeros((runner.prepare(), 1), np.int32)
        plan = runner.plan
        laws = [distribution(context) for context in runner.contexts]
        for row, law in enumerate(laws):
            if plan.temperature[row] > 0:
                assert row < plan.n_verify
                assert plan.uniform[row] == np.float32(
                    philox_uniform(seed, int(plan.positions[row]))
                )
                output[row, 0] = inverse_cdf(law, float(plan.uniform[row]))
            else:
                assert row >= plan.n_verify
                output[row, 0] = int(np.argmax(law))
        if recursive:
            session.commit_recursive(output, np.array(laws[: plan.n_verify]))
        else:
            session.commit(output)
        yield session


def sampled_tokens(drafter: Drafter, seed: int) -> tuple[list[int], int]:
    *_, session = sampled_run(drafter, seed)
    return session.token_ids, session.stats["steps"]


def test_speculative_sampling_equals_plain_sampling_token_for_token() -> None:
    seen = set()
    for seed in range(10):
        plain, plain_steps = sampled_tokens(AutoregressiveDrafter(), seed)
        speculative, steps = sampled_tokens(PTDDrafter(seed=seed + 1), seed)
        assert speculative == plain
        assert steps < plain_steps
        assert sampled_tokens(PTDDrafter(), seed)[0] == plain
        seen.add(tuple(plain))
    assert len(seen) == 10


def test_recursive_commit_uses_the_numbers_of_its_positions() -> None:
    """Draw k (from 1) of a row at position p is philox_uniform(seed, p, k)."""
    tree = [(0, -1), (1, -1), (2, 0), (3, 0), (4, 1), (5, 1)]
    seed, accepted = 6, 0
    before = [1, 2, 3, 1, 2]
    for session in sampled_run(FixedTrees(tree), seed, recursive=True):
        rows = session.tree
        contexts: list[list[int]] = [before]
        for row in range(1, len(rows)):
            contexts.append([*contexts[rows.parents[row]], rows.tokens[row]])
        probs = [distribution(context) for context in contexts]
        path: list[int] = []
        while True:
            row = path[-1] if path else 0
            position = len(before) - 1 + len(path)
            numbers = (reference_uniform(seed, position, k) for k in count(1))
            children = [child for child in range(1, len(rows)) if rows.parents[child] == row]
            taken, last = accept_child(
                probs[row], [rows.tokens[child] for child in children], numbers.__next__
            )
            if taken is None:
                break
            path.append(children[taken])
        after = [*before, *(rows.tokens[row] for row in path), last]
        emitted = [1, 2, 3, 1, 2, *session.token_ids]
        assert emitted == after[: len(emitted)]
        accepted += len(path)
        before = emitted
    assert accepted > 5
