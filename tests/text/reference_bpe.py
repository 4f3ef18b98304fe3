"""Literal tokenizer rules in plain Python: the independent twin of what the engine builds.

Slow on purpose. Byte-level BPE (GPT-2 paper) with SmolLM2's and the cl100k-style pre-tokenizers,
and SentencePiece BPE from scores with byte fallback. No code is shared with ptd_engine or with
`tokenizers`.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import regex

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def pieces_of(text: str, pattern: str) -> list[str]:
    """The matches of a pattern that covers every character."""
    found = regex.findall(pattern, text)
    assert "".join(found) == text
    return found


def split_gpt2(text: str) -> list[str]:
    """GPT-2's expression."""
    return pieces_of(text, GPT2)


def split_smollm(text: str) -> list[str]:
    """Every numeric character alone, then GPT-2's expression on what lies between."""
    parts: list[str] = []
    between = ""
    for char in text:
        if unicodedata.category(char) in ("Nd", "Nl", "No"):
            parts += [*([between] if between else []), char]
            between = ""
        else:
            between += char
    parts += [between] if between else []
    return [piece for part in parts for piece in split_gpt2(part)]


def split_llama3(text: str) -> list[str]:
    """cl100k style, up to three digits together."""
    return pieces_of(text, CL100K.replace("DIGITS", r"\p{N}{1,3}"))


def split_qwen2(text: str) -> list[str]:
    """cl100k style on NFC text, single digits."""
    return pieces_of(unicodedata.normalize("NFC", text), CL100K.replace("DIGITS", r"\p{N}"))


def split_tekken(text: str) -> list[str]:
    """Mistral's expression: words are cut where the case rises."""
    return pieces_of(text, TEKKEN)


# pre name -> (splitter, whole pieces that are tokens skip the merges)
SPLITTERS: dict[str, tuple[Callable[[str], list[str]], bool]] = {
    "gpt-2": (split_gpt2, False),
    "default": (split_gpt2, False),
    "smollm": (split_smollm, False),
    "llama-bpe": (split_llama3, True),
    "qwen2": (split_qwen2, False),
    "tekken": (split_tekken, True),
}


def byte_characters() -> dict[int, str]:
    """GPT-2's bytes_to_unicode: printable Latin-1 bytes are themselves, others go from U+0100."""
    table: dict[int, str] = {}
    shift = 0
    for value in range(256):
        if 33 <= value <= 126 or 161 <= value <= 172 or 174 <= value <= 255:
            table[value] = chr(value)
        else:
            table[value] = chr(256 + shift)
            shift += 1
    return table


BYTES = byte_characters()
CHARS = {char: value for value, char in BYTES.items()}


def split_at_tokens(text: str, tokens: Sequence[str]) -> list[tuple[str, bool]]:
    """Cut a text at spelled-out added tokens: leftmost first, the longest at that place."""
    parts: list[tuple[str, bool]] = []
    start = at = 0
    while at < len(text):
        found = max((t for t in tokens if text.startswith(t, at)), key=len, default=None)
        if found is None:
            at += 1
            continue
        if at > start:
            parts.append((text[start:at], False))
        parts.append((found, True))
        start = at = at + len(found)
    if start < len(text):
        parts.append((text[start:], False))
    return parts


class ByteLevelReference:
    """Byte-level BPE from vocabulary, merges and added tokens."""

    def __init__(
        self, tokens: Sequence[str], merges: Sequence[str], added: Sequence[str], pre: str
    ) -> None:
        self.tokens = list(tokens)
        self.ids = {token: index for index, token in enumerate(tokens)}
        self.ranks = {tuple(line.split(" ")): rank for rank, line in enumerate(merges)}
        self.added = list(added)
        self.split, self.whole_pieces = SPLITTERS[pre]
        self.cache: dict[str, list[int]] = {}

    def piece(self, piece: str) -> list[int]:
        if piece not in self.cache:
            # SmolLM2 has no token for some bytes and no unknown token in its model: they are
            # lost before merging, so that their neighbours meet.
            symbols = [c for c in (BYTES[value] for value in piece.encode()) if c in self.ids]
            if self.whole_pieces and "".join(symbols) in self.ids:
                symbols = ["".join(symbols)]
            while True:
                ranked = [
                    (self.ranks[pair], i)
                    for i in range(len(symbols) - 1)
                    if (pair := (symbols[i], symbols[i + 1])) in self.ranks
                ]
                if not ranked:
                    break
                at = min(ranked)[1]
                symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
            self.cache[piece] = [self.ids[symbol] for symbol in symbols]
        return self.cache[piece]

    def encode(self, text: str) -> list[int]:
        out: list[int] = []
        for part, is_added in split_at_tokens(text, self.added):
            if is_added:
                out.append(self.ids[part])
            else:
                for piece in self.split(part):
                    out += self.piece(piece)
        return out

    def representable(self, text: str) -> str:
        """What remains of a text without the bytes that the vocabulary lacks."""
        kept = bytes(value for value in text.encode() if BYTES[value] in self.ids)
        return kept.decode("utf-8", "replace")

    def decode(self, ids: Sequence[int], skipped: Sequence[str] = ()) -> str:
        raw = b""
        for token in (self.tokens[i] for i in ids):
            if token in skipped:
                continue
            spelled = token in self.added or any(char not in CHARS for char in token)
            raw += token.encode() if spelled else bytes(CHARS[char] for char in token)
        return raw.decode("utf-8", "replace")


class SentencePieceReference:
    """SentencePiece BPE: join the adjacent pair with the best score, leftmost first."""

    def __init__(
        self, tokens: Sequence[str], scores: Mapping[str, float], added: Sequence[str]
    ) -> None:
        self.ids = {token: index for index, token in enumerate(tokens)}
        self.scores = scores
        self.added = list(added)

    def encode(self, text: str, space_prefix: bool = True) -> list[int]:
        out: list[int] = []
        for part, is_added in split_at_tokens(text, self.added):
            if is_added:
                out.append(self.ids[part])
                continue
            symbols = list((" " + part if space_prefix else part).replace(" ", "\u2581"))
            while True:
                ranked = [
                    (-self.scores[joined], i)
                    for i in range(len(symbols) - 1)
                    if (joined := symbols[i] + symbols[i + 1]) in self.scores
                ]
                if not ranked:
                    break
                at = min(ranked)[1]
                symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
            for symbol in symbols:
                if symbol in self.scores:
                    out.append(self.ids[symbol])
                else:
                    out += [self.ids[f"<0x{value:02X}>"] for value in symbol.encode()]
        return out


def train_merges(corpus: str, count: int) -> list[str]:
    """A few merges for a synthetic vocabulary: the most frequent pair again and again."""
    words = [[BYTES[b] for b in word.encode()] for word in regex.findall(r" ?\S+|\s+", corpus)]
    merges: list[str] = []
    for _ in range(count):
        pairs = Counter((a, b) for word in words for a, b in pairwise(word))
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(" ".join(best))
        for word in words:
            i = 0
            while i < len(word) - 1:
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = [best[0] + best[1]]
                i += 1
    return merges
