"""Self-Draft: branches drafted beside the text feed a cache of n-grams, which are verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reference.level_window import LevelWindow
from reference.ngram_pool import NgramPool
from reference.node import Row
from reference.philox import philox_uniform
from reference.window_loop import Trees


class SelfDraft:
    def __init__(
        self,
        branches: int = 6,
        length: int = 6,
        ngram: int = 4,
        ngrams_per_key: int = 10,
        corpus: Mapping[int, Sequence[Sequence[int]]] | None = None,
        corpus_candidates: int = 3,
        faithful: bool = False,
        pool_max_keys: int = 4096,
        seed: int = 0,
    ) -> None:
        self.branches = branches
        self.length = length
        self.ngram = ngram
        self.corpus = corpus or {}
        self.corpus_candidates = corpus_candidates
        self.max_accepted = ngram - 1 if faithful else 64
        self.seed = seed
        self.cache = NgramPool(ngrams_per_key, pool_max_keys)

    def begin(self, prompt: Sequence[int]) -> None:
        self.prompt = list(prompt)
        self.text: list[int] = []
        self.draws = 0
        self.cache.keys.clear()
        # Perturbations: one or two tokens each. Those that the warm-up drops have one.
        self.perturbations: list[list[int]] = []
        for i in range(self.branches + self.length - 3):
            size = 1 if i < self.length - 2 or self.uniform() < 0.5 else 2
            self.perturbations.append([self.draw() for _ in range(size)])
        first = [tokens[-1] for tokens in self.perturbations]
        self.window = LevelWindow(self.length - 1, first)
        self.read(prompt)

    def uniform(self) -> float:
        self.draws += 1
        return philox_uniform(self.seed, self.draws - 1)

    def draw(self) -> int:
        return self.prompt[int(self.uniform() * len(self.prompt))]

    def read(self, tokens: Sequence[int]) -> None:
        """N-grams of the context: prompt and output."""
        for token in tokens:
            self.text.append(token)
            self.remember(self.text)

    def remember(self, tokens: Sequence[int]) -> None:
        """The last n-gram of `tokens` and its key go into the cache."""
        if len(tokens) > self.ngram:
            key, *ngram = tokens[-self.ngram - 1 :]
            self.cache.insert(key, ngram)

    def propose(self, room: int) -> Trees:
        drafts: list[Row] = []
        below = [-1]  # column 0 hangs below the root, column i below perturbation i - 1
        for tokens in self.perturbations:
            for i, token in enumerate(tokens):
                drafts.append((token, len(drafts) - 1 if i else -1))
            below.append(len(drafts) - 1)
        for level in self.window.levels[1:]:
            rows = range(len(drafts), len(drafts) + len(level))
            drafts += [(token, above) for token, above in zip(level, below, strict=True)]
            below = list(rows)
        self.drafts = drafts
        self.last_rows = below if len(self.window.levels) > 1 else below[1:]

        chains: list[tuple[int, ...]] = []
        if self.window.full:
            # The branches go first: without their rows there would be no more n-grams.
            fits = max(0, room - len(drafts)) // self.ngram
            known = self.cache.retrieve(self.text[-1])
            chains = known[max(0, len(known) - fits) :]
            others = [tuple(g) for g in self.corpus.get(self.text[-1], []) if tuple(g) not in known]
            chains += others[: min(self.corpus_candidates, fits - len(chains))]
        candidates: list[Row] = []
        for chain in chains:
            for i, token in enumerate(chain):
                candidates.append((token, len(candidates) - 1 if i else -1))
        return candidates, drafts

    def observe(
        self, root_next: int, drafted: Sequence[int | None], new_tokens: Sequence[int]
    ) -> None:
        if self.window.full:
            self.learn(root_next, drafted)
        predictions = [drafted[row] for row in self.last_rows]
        self.window.advance([self.draw() if token is None else token for token in predictions])
        if len(self.perturbations) > self.branches - 1:
            self.perturbations.pop(0)
        else:
            for tokens, token in zip(self.perturbations, self.window.levels[0], strict=True):
                tokens.append(token)
                tokens.pop(0)
        self.read(new_tokens)

    def learn(self, root_next: int, drafted: Sequence[int | None]) -> None:
        """N-grams that end in a prediction, first of the perturbed branches, then of column 0."""
        column_0 = {
            len(self.drafts) - (self.length - 2 - level) * self.branches
            for level in range(self.length - 2)
        }
        for row, token in enumerate(drafted):
            if row in column_0 or token is None:
                continue
            branch: list[int] = [token]
            above = row
            while above >= 0:
                branch.insert(0, self.drafts[above][0])
                above = self.drafts[above][1]
            self.remember(branch)
        branch = list(self.text)
        self.remember([*branch, root_next])
        for row in sorted(column_0):
            branch.append(self.drafts[row][0])
            prediction = drafted[row]
            if prediction is not None:
                self.remember([*branch, prediction])
