"""Suffix decoding by counting: occurrences are looked for in the text itself, without a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reference.node import Row

Sequences = list[list[int]]


def ends(sequences: Sequences, path: Sequence[int]) -> list[tuple[int, int]]:
    """(sequence, position behind) of every occurrence, in order."""
    wanted = list(path)
    return [
        (number, start + len(wanted))
        for number, tokens in enumerate(sequences)
        for start in range(len(tokens) - len(wanted) + 1)
        if tokens[start : start + len(wanted)] == wanted
    ]


def continuations(sequences: Sequences, path: Sequence[int]) -> list[tuple[int, int]]:
    """(token, count) of what follows, most frequent first, among equals the last one seen first."""
    found: dict[int, list[tuple[int, int]]] = {}
    for number, end in ends(sequences, path):
        if end < len(sequences[number]):
            found.setdefault(sequences[number][end], []).append((number, end))
    order = sorted(found, key=lambda token: (len(found[token]), found[token][-1]), reverse=True)
    return [(token, len(found[token])) for token in order]


@dataclass
class Suffix:
    max_nodes: int
    max_depth: int
    factor: float
    min_probability: float
    as_tree: bool
    index_tokens: int
    text: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    young: Sequences = field(default_factory=list)
    old: Sequences = field(default_factory=list)

    def begin(self, prompt: Sequence[int]) -> None:
        """The last request's output goes into the younger half of the index."""
        half = self.index_tokens // 2
        kept = self.output[max(0, len(self.output) - half) :]
        if kept:
            if sum(map(len, self.young)) + len(kept) > half:
                self.old, self.young = self.young, []
            self.young.append(kept)
        self.text = list(prompt)
        self.output = []

    def append(self, tokens: Sequence[int]) -> None:
        self.text.extend(tokens)
        self.output.extend(tokens)

    def propose(self, room: int) -> list[Row]:
        best: tuple[tuple[float, int, int], list[Row]] = ((0.0, 0, 0), [])
        for source, sequences in enumerate([[self.text], self.young, self.old]):
            for length in range(1, min(self.max_depth, len(self.text)) + 1):
                match = self.text[len(self.text) - length :]
                budget = min(
                    self.max_nodes, room, int(self.factor * length), self.max_depth - length
                )
                if budget <= 0 or not ends(sequences, match):
                    continue
                score, rows = self.draft(sequences, match, budget)
                if rows and (score, length, -source) > best[0]:
                    best = ((score, length, -source), rows)
        return best[1]

    def draft(
        self, sequences: Sequences, match: Sequence[int], budget: int
    ) -> tuple[float, list[Row]]:
        """The sum of P over the drafted nodes, and these."""
        rows: list[Row] = []
        paths: list[list[int]] = []
        open_nodes: list[tuple[float, int, int]] = []  # (P, token, parent), in order of discovery
        score = 0.0

        def discover(below: list[int], probability: float, parent: int) -> None:
            path = [*match, *below]
            here = len(ends(sequences, path))
            following = continuations(sequences, path)
            for token, count in following if self.as_tree else following[:1]:
                if probability * (count / here) >= self.min_probability:
                    open_nodes.append((probability * (count / here), token, parent))

        discover([], 1.0, -1)
        while open_nodes and len(rows) < budget:
            best = max(open_nodes, key=lambda node: node[0])  # the first of equals
            open_nodes.remove(best)
            probability, token, parent = best
            score += probability
            rows.append((token, parent))
            paths.append([*(paths[parent] if parent >= 0 else []), token])
            discover(paths[-1], probability, len(rows) - 1)
        return score, rows
