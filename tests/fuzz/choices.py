"""The bytes of one input as a list of choices, and what they do to a document."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Choices:
    """Choices from a byte string; behind its end the first one, every time."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def byte(self) -> int:
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1]

    def below(self, limit: int) -> int:
        """A number in [0, limit)."""
        drawn = self.byte() if limit <= 256 else int.from_bytes(bytes([self.byte(), self.byte()]))
        return drawn % limit

    def one_of(self, values: Sequence[T]) -> T:
        return values[self.below(len(values))]

    def rest(self) -> bytes:
        self._at, start = len(self._data), self._at
        return self._data[start:]


# What careless code trips over, in a place where something else belongs.
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 255, 4096, 2**31 - 1, 2**31, 2**63, 2**64, -(2**63)),
    *(0.0, -0.0, 0.5, -1.5, 1e-300, 1e308, float("nan"), float("inf"), float("-inf"), 10**30),
    *("", "0", "auto", "\x00", "\ud800", "ü" * 3, "x" * 300, "../m", "/dev/null", "a/b", "%s{}"),
    *([], {}, [None], [[]], {"": None}, [0] * 300, ["a", 1], [[[[[[]]]]]], {"a": {"b": [{}]}}),
)


def mutated(document: Any, choices: Choices, names: Sequence[str]) -> Any:
    """A copy of a JSON document, changed in up to four places.

    Args:
        document: dicts, lists and scalars.
        choices: where and how.
        names: keys that may be added.
    """
    changed = copy.deepcopy(document)
    for _ in range(1 + choices.below(4)):
        where = changed
        while isinstance(where, dict | list) and where:
            keys = list(where) if isinstance(where, dict) else list(range(len(where)))
            key = choices.one_of(keys)
            inner = where[key]
            if isinstance(inner, dict | list) and inner and choices.below(4):
                where = inner
                continue
            _change(where, key, choices, names)
            break
        else:
            changed = copy.deepcopy(choices.one_of(ODD))
    return changed


def _change(where: Any, key: Any, choices: Choices, names: Sequence[str]) -> None:
    match choices.below(8):
        case 0:
            del where[key]
        case 1 if isinstance(where, dict):
            where[choices.one_of(names)] = where.pop(key)
        case 2 if isinstance(where, dict):
            where[choices.one_of(names)] = copy.deepcopy(choices.one_of(ODD))
        case 3 if isinstance(where, list):
            where.append(copy.deepcopy(where[key]))
        case 4 if isinstance(where[key], str):
            text = where[key]
            at = choices.below(len(text) + 1)
            where[key] = text[:at] + choices.one_of(["\x00", "\ud800", "{", "ü", "9"]) + text[at:]
        case 5 if isinstance(where[key], int):
            where[key] = where[key] + choices.one_of([1, -1, 256, -1000, 2**32])
        case _:
            where[key] = copy.deepcopy(choices.one_of(ODD))


def to_json(document: Any) -> bytes:
    """As Python writes it: NaN and lone surrogates (as escapes) too."""
    return json.dumps(document).encode()
