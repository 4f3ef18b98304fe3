"""The window of Lookahead and Self-Draft: levels of tokens, one more or one newer every step."""

from __future__ import annotations

from collections.abc import Sequence


class LevelWindow:
    """`levels[l][i]` is column i of level l; full with `n_levels` levels."""

    def __init__(self, n_levels: int, first_level: Sequence[int]) -> None:
        self.n_levels = n_levels
        self.levels = [list(first_level)]

    @property
    def full(self) -> bool:
        return len(self.levels) == self.n_levels

    def advance(self, predictions: Sequence[int]) -> None:
        """`predictions` are those of the last level's columns."""
        if self.full:
            # The oldest level goes. The next one loses its first token, which the text has passed.
            self.levels = [self.levels[1][1:], *self.levels[2:], list(predictions)]
        elif len(self.levels) == 1:
            # Column 0 of level 1 stands below the root, column i below token i - 1 of level 0.
            self.levels = [self.levels[0][1:], list(predictions)]
        else:
            self.levels = [*(level[1:] for level in self.levels), list(predictions[1:])]
