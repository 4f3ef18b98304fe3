"""Token Recycling: a matrix of each token's last seen successors under a static tree of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reference.node import Row

RANK_SHARES = (0.45, 0.12, 0.07, 0.04, 0.03, 0.022, 0.02, 0.016)


def rank_share(rank: int) -> float:
    if rank < len(RANK_SHARES):
        return RANK_SHARES[rank]
    return RANK_SHARES[-1] * len(RANK_SHARES) / (rank + 1)


def static_tree(nodes: int, successors: int) -> list[tuple[int, int]]:
    """(parent, rank) of the most probable paths of ranks; parent -1 is the last token."""
    taken: list[tuple[int, int]] = []
    found = [(rank_share(rank), -1, rank) for rank in range(successors)]  # in order of discovery
    while len(taken) < nodes:
        best = max(found, key=lambda path: path[0])  # the first of equals
        found.remove(best)
        share, parent, rank = best
        taken.append((parent, rank))
        found.extend((share * rank_share(r), len(taken) - 1, r) for r in range(successors))
    return taken


@dataclass
class TokenRecycling:
    nodes: int
    successors: int
    warm: bool
    matrix: dict[int, list[int]] = field(default_factory=dict)

    def begin(self) -> None:
        if not self.warm:
            self.matrix = {}

    def refresh(self, token: int, output: Sequence[int]) -> None:
        """`output`: the row's next token, then its best successors; -1 where there is none."""
        best = list(output[1 : 1 + self.successors])
        if output[0] >= 0 and best[0] >= 0:
            self.matrix[token] = best[: best.index(-1)] if -1 in best else best

    def refresh_step(
        self, tokens: Sequence[int], outputs: Sequence[Sequence[int]], path: Sequence[int]
    ) -> None:
        """Every row of a step, then once more the root and the accepted rows."""
        for row in [*range(len(tokens)), 0, *path]:
            self.refresh(tokens[row], outputs[row])

    def propose(self, last: int) -> list[Row]:
        rows: list[Row] = []
        row_of: list[int | None] = []  # of each static node
        for parent, rank in static_tree(self.nodes, self.successors):
            row_of.append(None)
            above = -1 if parent < 0 else row_of[parent]
            if above is None:
                continue
            known = self.matrix.get(last if above < 0 else rows[above][0], [])
            if rank < len(known):
                row_of[-1] = len(rows)
                rows.append((known[rank], above))
        return rows
