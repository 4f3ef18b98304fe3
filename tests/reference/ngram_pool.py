"""The n-gram pool of the window drafters: last token -> tuples that followed it, both LRU."""

from __future__ import annotations

from collections.abc import Sequence


class NgramPool:
    """`keys` and each key's tuples go from the least to the most recently used."""

    def __init__(self, per_key: int, max_keys: int) -> None:
        self.per_key = per_key
        self.max_keys = max_keys
        self.keys: dict[int, list[tuple[int, ...]]] = {}

    def insert(self, key: int, ngram: Sequence[int]) -> None:
        tuples = self.keys.pop(key, [])
        if tuple(ngram) in tuples:
            tuples.remove(tuple(ngram))
        tuples.append(tuple(ngram))
        self.keys[key] = tuples[-self.per_key :]
        if len(self.keys) > self.max_keys:
            del self.keys[next(iter(self.keys))]

    def retrieve(self, key: int) -> list[tuple[int, ...]]:
        if key in self.keys:
            self.keys[key] = self.keys.pop(key)
        return list(self.keys.get(key, []))
