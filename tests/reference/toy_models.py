"""Models of a few lines: the next token as a function of the context."""

from __future__ import annotations

from collections.abc import Sequence

from reference.ptd_algorithm import NextToken


def lookup_last(table: Sequence[int]) -> NextToken:
    """table[last token]"""
    return lambda context: table[context[-1]]


def lookup_last_two(table: Sequence[Sequence[int]]) -> NextToken:
    """table[last but one][last]; a context of one token is read as if it were doubled."""
    return lambda context: table[context[-2] if len(context) > 1 else context[-1]][context[-1]]


def hashed(vocabulary: int, salt: int, window: int) -> NextToken:
    """A multiplicative hash of the last `window` tokens and of the context's length mod 3."""

    def next_token(context: Sequence[int]) -> int:
        value = salt + len(context) % 3
        for token in context[-window:]:
            value = ((value ^ token) * 0x9E3779B1 + 0x7F4A7C15) & 0xFFFFFFFF
            value ^= value >> 15
        return value % vocabulary

    return next_token
