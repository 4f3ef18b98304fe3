"""Runs a C++ Session on a toy model, through a KV cache that holds token ids.

The cache is what makes a wrong mask, position, commit or prefix loud: a row's context is read
back from the cache rows that its mask lets it see, never from the session's own token list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from reference.ptd_algorithm import NextToken

from ptd_engine._core import Drafter, DrafterNeeds, Session, StepOutcome, TreeBuilder, plan_layout

POISON = -999


@dataclass(frozen=True)
class PlanView:
    """The fields of a packed plan block."""

    n_nodes: int
    n_verify: int
    prefix_len: int
    n_commit: int
    flags: int
    sampling: npt.NDArray[np.float32]  # [4]
    token_ids: npt.NDArray[np.int32]  # [N]
    positions: npt.NDArray[np.int32]  # [N]
    commit_src: npt.NDArray[np.int32]  # [P]
    temperature: npt.NDArray[np.float32]  # [N]
    uniform: npt.NDArray[np.float32]  # [N]
    masks: list[int]  # N integers, bit j = row j is visible


def read_plan(block: bytes | npt.NDArray[np.uint8], n_bucket: int, max_path: int = 64) -> PlanView:
    layout = plan_layout(n_bucket, max_path)

    def field(name: str, dtype: type) -> npt.NDArray:
        offset, size = layout[name]
        return np.frombuffer(bytes(block[offset : offset + size]), dtype=dtype)

    header = field("header", np.int32)
    masks = field("mask", np.uint64).reshape(n_bucket, -1)
    return PlanView(
        *(int(value) for value in header[:5]),
        sampling=field("sampling", np.float32),
        token_ids=field("token_ids", np.int32),
        positions=field("positions", np.int32),
        commit_src=field("commit_src", np.int32),
        temperature=field("temperature", np.float32),
        uniform=field("uniform", np.float32),
        masks=[sum(int(word) << (64 * w) for w, word in enumerate(row)) for row in masks],
    )


class ToyRunner:
    """The model side of a session: cache, forward and output block."""

    def __init__(self, session: Session, prompt: Sequence[int], capacity: int = 1024) -> None:
        self.session = session
        self.kv = np.full(capacity, POISON, np.int64)
        self.kv[: len(prompt) - 1] = prompt[:-1]
        self.block = np.zeros(session.plan_bytes, np.uint8)
        self.plan: PlanView
        self.contexts: list[list[int]] = []

    def prepare(self) -> int:
        """Plan, run the commit moves and write the new rows; returns the bucket."""
        self.block[:] = 0xAB  # nothing of the last step may be relied on
        n_bucket = self.session.plan(self.block)
        self.plan = plan = read_plan(self.block, n_bucket)
        first = plan.prefix_len - plan.n_commit
        for i, source in enumerate(plan.commit_src[: plan.prefix_len]):
            assert i < plan.n_commit or source == first + i
            assert source >= first + i
            if i < plan.n_commit:
                self.kv[first + i] = self.kv[source]
        self.kv[plan.prefix_len :] = POISON
        self.kv[plan.prefix_len : plan.prefix_len + n_bucket] = plan.token_ids
        self.contexts = []
        for row in range(plan.n_nodes):
            visible = [j for j in range(n_bucket) if plan.masks[row] >> j & 1]
            context = self.kv[[*range(plan.prefix_len), *(plan.prefix_len + j for j in visible)]]
            assert plan.positions[row] == len(context) - 1
            assert POISON not in context
            self.contexts.append(context.tolist())
        return n_bucket

    def step(self, next_token: NextToken) -> tuple[list[int], int]:
        """One greedy step: (tokens emitted, how many were candidates)."""
        output = np.full((self.prepare(), 1), 7777, np.int32)  # padding rows are never read
        for row, context in enumerate(self.contexts):
            output[row, 0] = next_token(context)
        return self.session.commit(output)


def run(session: Session, prompt: Sequence[int], next_token: NextToken) -> Iterator[list[int]]:
    """Steps until the session is finished, checking the cache against the tokens after each."""
    runner = ToyRunner(session, prompt)
    while not session.finished:
        tokens, accepted = runner.step(next_token)
        assert len(tokens) in (accepted, accepted + 1)
        assert session.kv_len == len(prompt) + len(session.token_ids) - 1
        assert runner.plan.prefix_len + len(tokens) == session.kv_len
        committed = [*prompt, *session.token_ids]
        assert runner.kv[: runner.plan.prefix_len].tolist() == committed[: runner.plan.prefix_len]
        yield tokens


def generate(session: Session, prompt: Sequence[int], next_token: NextToken) -> list[int]:
    for _ in run(session, prompt, next_token):
        pass
    return session.token_ids


class FixedTrees(Drafter):
    """The seam for forced candidates: step i proposes trees[i] (the last one from then on).

    A tree is a list of (token, parent index or -1).
    """

    def __init__(self, *trees: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.trees = trees
        self.steps = 0
        self.accepted: list[list[int]] = []
        self.new_tokens: list[list[int]] = []

    def needs(self) -> DrafterNeeds:
        return DrafterNeeds(max(len(tree) for tree in self.trees))

    def begin(self, prompt: list[int]) -> None:
        self.steps = 0

    def propose(self, committed: list[int], tree: TreeBuilder) -> None:
        rows: list[int] = []
        for token, parent in self.trees[min(self.steps, len(self.trees) - 1)]:
            above = 0 if parent < 0 else rows[parent]
            rows.append(-1 if above < 0 else tree.add_candidate(above, token))

    def observe(self, outcome: StepOutcome) -> None:
        self.steps += 1
        self.accepted.append(outcome.accepted)
        self.new_tokens.append(outcome.new_tokens)


def chain(*tokens: int) -> list[tuple[int, int]]:
    return [(token, index - 1) for index, token in enumerate(tokens)]
