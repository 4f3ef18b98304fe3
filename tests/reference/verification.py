"""Verification: the walk over one token a node, and Algorithm 2 (recursive, on distributions)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Draw = Callable[[], float]


def verify_walk(
    tokens: Sequence[int], parents: Sequence[int], next_tokens: Sequence[int], n_verify: int
) -> list[int]:
    """Accepted rows below the root (row 0): descend while y_n is a child of n.

    Where several children hold y_n (chains that were never merged), the one whose match goes on
    longest is taken; among equals the lowest row.
    """

    def walk(row: int) -> list[int]:
        longest: list[int] = []
        for child in range(1, n_verify):
            if parents[child] == row and tokens[child] == next_tokens[row]:
                path = [child, *walk(child)]
                if len(path) > len(longest):
                    longest = path
        return longest

    return walk(0)


def mass(probabilities: Sequence[float]) -> float:
    """The plain left-to-right sum (from Python 3.12 on `sum` compensates rounding errors)."""
    total = 0.0
    for probability in probabilities:
        total += probability
    return total


def inverse_cdf(probabilities: Sequence[float], uniform: float) -> int:
    """First id whose cumulative mass exceeds uniform * total, in the order of the ids."""
    target = uniform * mass(probabilities)
    cumulative = 0.0
    last = 0
    for token, probability in enumerate(probabilities):
        cumulative += probability
        if cumulative > target:
            return token
        if probability > 0.0:
            last = token
    return last  # rounding left the target at the total: the last id with any mass


def accept_child(
    probabilities: Sequence[float], children: Sequence[int], draw: Draw
) -> tuple[int | None, int]:
    """One node of Algorithm 2, with both traps mended.

    `children` are the tokens of the node's children in order. Returns (index of the accepted
    child or None, the token). A rejected child's probability becomes 0 and what is left is
    renormalised over the whole vocabulary; after the last rejection the token is drawn from it.
    """
    left = list(probabilities)
    for index, token in enumerate(children):
        if draw() < left[token]:
            return index, token
        rest = left[:]
        rest[token] = 0.0
        total = mass(rest)
        if total <= 0.0:  # this child held all the mass that was left
            return index, token
        left = [probability / total for probability in rest]
    return None, inverse_cdf(left, draw())


def accept_child_as_printed(
    probabilities: Sequence[float], children: Sequence[int], draw: Draw
) -> tuple[int | None, int]:
    """What Algorithm 2 does if its text is followed to the letter; kept to show it is biased.

    "Renormalise over the remaining nodes in C" spreads a rejected child's mass over the other
    *children*, so the last child is always taken, and `r <= P` lets r = 0 accept a child of
    probability 0. P = (.5, .3, .2) with children [0, 1] gives the law (.5, .5, 0).
    """
    left = {token: probabilities[token] for token in children}
    for index, token in enumerate(children):
        if draw() <= left[token]:
            return index, token
        del left[token]
        total = sum(left.values())
        if total > 0.0:
            left = {other: probability / total for other, probability in left.items()}
    return None, max(range(len(probabilities)), key=lambda token: probabilities[token])


def verify_recursive(
    tokens: Sequence[int],
    parents: Sequence[int],
    n_verify: int,
    probabilities: Sequence[Sequence[float]],
    draw: Draw,
) -> tuple[list[int], int]:
    """Algorithm 2 over the whole candidate tree: (accepted rows below the root, last token)."""
    path: list[int] = []
    row = 0
    while True:
        children = [child for child in range(1, n_verify) if parents[child] == row]
        accepted, token = accept_child(
            probabilities[row], [tokens[child] for child in children], draw
        )
        if accepted is None:
            return path, token
        row = children[accepted]
        path.append(row)
