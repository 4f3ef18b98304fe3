"""Prompt lookup: what followed the first occurrence of the longest known run of last tokens."""

from __future__ import annotations

from collections.abc import Sequence


def first_occurrence(text: Sequence[int], length: int) -> int | None:
    """Where the last `length` tokens stand first with something behind them, if anywhere."""
    wanted = list(text[len(text) - length :])
    for start in range(len(text) - length):
        if list(text[start : start + length]) == wanted:
            return start
    return None


def propose(text: Sequence[int], max_ngram: int, max_tokens: int) -> list[int]:
    """The chain of tokens to verify; empty where not even the last token stood before."""
    for length in range(min(max_ngram, len(text)), 0, -1):
        start = first_occurrence(text, length)
        if start is not None:
            return list(text[start + length : start + length + max_tokens])
    return []
