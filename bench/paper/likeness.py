"""ROUGE-L and BLEU of one text against another, on words.

For drafting both are 1 wherever the output is plain decoding's own; they say how far apart texts of
two seeds, or of two ways of verification, are.
Sources: Lin, 2004 (ROUGE-L, F1 of the longest common subsequence); Papineni et al., 2002 (BLEU);
Chen and Cherry, 2014 (smoothing 2: one is added to the counts of n > 1).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

_MAX_N = 4


def words(text: str) -> list[str]:
    """Lower-case words and single signs."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


def rouge_l(text: str, reference: str) -> float:
    """F1 of the longest common subsequence; 1 where both texts are empty."""
    ours, theirs = words(text), words(reference)
    if not ours or not theirs:
        return float(ours == theirs)
    common = _common_length(ours, theirs)
    return 2 * common / (len(ours) + len(theirs))


def bleu(text: str, reference: str) -> float:
    """BLEU-4 of one sentence, 0 to 1; 1 where both texts are empty."""
    ours, theirs = words(text), words(reference)
    if not ours or not theirs:
        return float(ours == theirs)
    log_precision = 0.0
    for n in range(1, _MAX_N + 1):
        have, allowed = _grams(ours, n), _grams(theirs, n)
        matched, total = sum((have & allowed).values()), have.total()
        smooth = int(n > 1)
        if matched + smooth == 0:
            return 0.0
        log_precision += math.log((matched + smooth) / (total + smooth)) / _MAX_N
    brevity = min(0.0, 1 - len(theirs) / len(ours))
    return math.exp(brevity + log_precision)


def _grams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def _common_length(a: Sequence[str], b: Sequence[str]) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        diagonal = 0
        for j, y in enumerate(b, start=1):
            above = row[j]
            row[j] = diagonal + 1 if x == y else max(above, row[j - 1])
            diagonal = above
    return row[-1]
