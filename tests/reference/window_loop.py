"""A decoding loop around a drafter whose trees do not depend on what was accepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from reference.node import Row
from reference.ptd_algorithm import NextToken, Settings, token_limit
from reference.step_plan import StepPlan, build_plan
from reference.verification import verify_walk

Trees = tuple[list[Row], list[Row]]  # candidates, drafts


class WindowDrafter(Protocol):
    """What Lookahead and Self-Draft have in common."""

    max_accepted: int  # most candidates that a step is credited with

    def begin(self, prompt: Sequence[int]) -> None: ...

    def propose(self, room: int) -> Trees:
        """The trees of a step with `room` rows besides the root."""

    def observe(
        self, root_next: int, drafted: Sequence[int | None], new_tokens: Sequence[int]
    ) -> None:
        """The root's next token, each draft's (None: it had no row), and what was output."""


@dataclass
class WindowStep:
    """What one step did."""

    output: list[int]
    plan: StepPlan


def decode(
    next_token: NextToken, prompt: Sequence[int], drafter: WindowDrafter, settings: Settings
) -> Iterator[WindowStep]:
    """Propose, forward, verify, observe, until stopped; every step's state is the drafter's."""
    drafter.begin(prompt)
    committed = list(prompt)
    last_length = len(prompt) + token_limit(prompt, settings)
    while len(committed) < last_length:
        candidates, drafts = drafter.propose(settings.max_rows - 1)
        plan = build_plan(
            committed[-1],
            len(committed) - 1,
            candidates,
            drafts,
            max_seq_len=settings.max_seq_len,
            max_rows=settings.max_rows,
            max_path=settings.max_path,
        )
        predictions = [
            next_token([*committed[:-1], *plan.path(row)]) for row in range(len(plan.tokens))
        ]
        path = verify_walk(plan.tokens, plan.parents, predictions, plan.n_verify)
        path = path[: drafter.max_accepted]
        output = [plan.tokens[row] for row in path]
        output.append(predictions[path[-1] if path else 0])
        output = output[: last_length - len(committed)]
        for index, token in enumerate(output):
            if token in settings.eos_ids:
                output = output[: index + 1]
                break
        committed.extend(output)
        drafted = [None if row is None else predictions[row] for row in plan.draft_rows]
        drafter.observe(predictions[0], drafted, output)
        yield WindowStep(output, plan)
        if output[-1] in settings.eos_ids:
            return
