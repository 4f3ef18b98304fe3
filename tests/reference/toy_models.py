"""Models of a few lines: the next token as a function of the context."""

from __future__ import annotations

from collections.abc import Sequence

from reference.ptd_algorithm import NextToken, Successors


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


def ranked(next_token: NextToken, vocabulary: int, k: int, *, salt: int, cut: bool) -> Successors:
    """The k <= vocabulary likeliest successors, the next token first, or second as after a tie.

    With `cut` a varying number of the last ones is -1, as beyond a top-p set.
    """

    def successors(context: Sequence[int]) -> list[int]:
        best = next_token(context)
        others = [token for token in range(vocabulary) if token != best]
        turn = salt + 3 * context[-1] + len(context)
        shift = turn % max(len(others), 1)
        listed = [best, *others[shift:], *others[:shift]][:k]
        if turn % 5 == 0:
            listed[:2] = reversed(listed[:2])
        inside = 1 + turn % k if cut else k
        return listed[:inside] + [-1] * (k - inside)

    return successors
