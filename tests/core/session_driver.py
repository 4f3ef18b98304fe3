"""Runs a C++ Session on a toy model, without an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from reference.ptd_algorithm import Successors

from ptd_engine._core import Session
from ptd_engine.testing import toy
from ptd_engine.testing.forced import FixedTrees, chain
from ptd_engine.testing.toy import NextToken, PlanView, read_plan

__all__ = ["FixedTrees", "PlanView", "ToyRunner", "chain", "generate", "read_plan", "run"]


class ToyRunner(toy.ToyRunner):
    """The model side of one session; the model comes with each step."""

    def __init__(
        self,
        session: Session,
        prompt: Sequence[int],
        capacity: int = 1024,
        successors: Successors | None = None,
    ) -> None:
        super().__init__(lambda context: 0, max_seq_len=capacity)
        self.session = session
        self.successors = successors
        self.prefill(prompt[:-1], prompt_len=len(prompt))

    def prepare(self) -> int:
        """Plan, run the commit moves and write the new rows; returns the bucket."""
        n_bucket = self.session.plan(self.staging)
        self.place(n_bucket)
        return n_bucket

    def _outputs(self, contexts: Sequence[list[int]], rows: int) -> npt.NDArray[np.int32]:
        outputs = super()._outputs(contexts, rows)
        if self.successors is None:
            return outputs
        listed = [self.successors(context) for context in contexts]
        listed += [[7777] * len(listed[0])] * (rows - len(listed))
        return np.ascontiguousarray(np.hstack([outputs, np.array(listed, np.int32)]))

    def step(self, next_token: NextToken) -> tuple[list[int], int]:
        """One greedy step: (tokens emitted, how many were candidates)."""
        self.next_token = next_token
        self.launch(self.session.plan(self.staging))
        return self.session.commit(self.wait())


def run(
    session: Session,
    prompt: Sequence[int],
    next_token: NextToken,
    successors: Successors | None = None,
) -> Iterator[list[int]]:
    """Steps until the session is finished, checking the cache against the tokens after each."""
    runner = ToyRunner(session, prompt, successors=successors)
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
