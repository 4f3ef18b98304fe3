"""Lookahead decoding (LADE): a window of Jacobi levels feeds n-grams, which are verified."""

from __future__ import annotations

from collections.abc import Sequence

from reference.level_window import LevelWindow
from reference.ngram_pool import NgramPool
from reference.node import Row
from reference.philox import philox_uniform
from reference.window_loop import Trees


class Lookahead:
    def __init__(
        self,
        level: int = 5,
        window: int = 15,
        guesses: int = 15,
        prompt_ngrams: bool = False,
        faithful: bool = False,
        pool_max_keys: int = 4096,
        seed: int = 0,
    ) -> None:
        self.level = level
        self.columns = window
        self.prompt_ngrams = prompt_ngrams
        self.max_accepted = level - 2 if faithful else 64
        self.seed = seed
        self.pool = NgramPool(guesses, pool_max_keys)

    def begin(self, prompt: Sequence[int]) -> None:
        self.prompt = list(prompt)
        self.text: list[int] = []
        self.draws = 0
        self.pool.keys.clear()
        first = [self.draw() for _ in range(self.columns + self.level - 3)]
        self.window = LevelWindow(self.level - 1, first)
        self.read(prompt)

    def draw(self) -> int:
        uniform = philox_uniform(self.seed, self.draws)
        self.draws += 1
        return self.prompt[int(uniform * len(self.prompt))]

    def read(self, tokens: Sequence[int]) -> None:
        """Text goes into the pool, if that is wanted."""
        for token in tokens:
            self.text.append(token)
            if self.prompt_ngrams and len(self.text) >= self.level:
                key, *ngram = self.text[-self.level :]
                self.pool.insert(key, ngram)

    def propose(self, room: int) -> Trees:
        levels = self.window.levels
        drafts: list[Row] = [(token, i - 1) for i, token in enumerate(levels[0])]
        below = list(range(-1, len(levels[0])))  # column i of level 1 hangs below chain token i - 1
        for level in levels[1:]:
            rows = range(len(drafts), len(drafts) + len(level))
            drafts += [(token, above) for token, above in zip(level, below, strict=False)]
            below = list(rows)
        candidates: list[Row] = []
        if self.window.full:
            # The window goes first: without its rows there would be no more n-grams.
            chains = max(0, room - len(drafts)) // (self.level - 1)
            tuples = self.pool.retrieve(self.text[-1])
            for ngram in tuples[max(0, len(tuples) - chains) :]:
                for i, token in enumerate(ngram):
                    candidates.append((token, len(candidates) - 1 if i else -1))
        return candidates, drafts

    def observe(
        self, root_next: int, drafted: Sequence[int | None], new_tokens: Sequence[int]
    ) -> None:
        levels = self.window.levels
        predictions = drafted[len(drafted) - len(levels[-1]) :]
        if self.window.full:
            keys = [self.text[-1], *levels[0]]
            for i, token in enumerate(predictions):
                if token is not None:
                    middle = [level[i] for level in levels[1:]]
                    self.pool.insert(keys[i], [*middle, token])
        self.window.advance([self.draw() if token is None else token for token in predictions])
        self.read(new_tokens)
