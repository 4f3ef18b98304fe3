"""What one step sends to the model: rows, positions, ancestor masks, padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reference.node import Row


@dataclass
class StepPlan:
    """Rows [root | candidates | drafts]; row i sees the prefix, its ancestors and itself.

    `draft_rows[j]` is the plan row of draft node j, or None where it was left out.
    """

    prefix_len: int
    tokens: list[int]
    parents: list[int]
    positions: list[int]
    ancestors: list[set[int]]
    n_verify: int
    candidate_rows: list[int | None] = field(default_factory=list)
    draft_rows: list[int | None] = field(default_factory=list)

    def path(self, row: int) -> list[int]:
        """Tokens from the root to `row`, both included."""
        above = self.parents[row]
        return [*([] if above < 0 else self.path(above)), self.tokens[row]]

    def padded_masks(self, n: int) -> list[int]:
        """One integer a row, bit j = node j is the row or above it; padding sees itself only."""
        masks = [sum(1 << node for node in nodes) for nodes in self.ancestors]
        return masks + [1 << row for row in range(len(masks), n)]


def build_plan(
    root_token: int,
    prefix_len: int,
    candidates: Sequence[Row],
    drafts: Sequence[Row],
    *,
    max_seq_len: int,
    max_rows: int,
    max_path: int,
) -> StepPlan:
    """Place the root, then the candidates, then the drafts, each below its parent.

    A node is left out where its parent was, where its position would be max_seq_len or more,
    where it would be more than max_path hops below the root, or where the plan is full.
    """
    plan = StepPlan(prefix_len, [root_token], [-1], [prefix_len], [{0}], 1)

    def place(tree: Sequence[Row]) -> list[int | None]:
        placed: list[int | None] = []
        for token, parent in tree:
            above = 0 if parent < 0 else placed[parent]
            if above is None or len(plan.tokens) >= max_rows:
                placed.append(None)
                continue
            position = plan.positions[above] + 1
            if position >= max_seq_len or position - prefix_len > max_path:
                placed.append(None)
                continue
            row = len(plan.tokens)
            plan.tokens.append(token)
            plan.parents.append(above)
            plan.positions.append(position)
            plan.ancestors.append(plan.ancestors[above] | {row})
            placed.append(row)
        return placed

    plan.candidate_rows = place(candidates)
    plan.n_verify = len(plan.tokens)
    plan.draft_rows = place(drafts)
    return plan
