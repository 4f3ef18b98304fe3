"""The decoders of the `tokenizers` library as incremental stages.

A decoder maps the list of token strings to text. Each stage here does the same map on a growing
list: it gives out what no later token can change and keeps the rest (part of a UTF-8 character, an
open run of byte tokens). So the work per token is constant and the concatenation of everything
given out, `flush` included, equals the library's decoding of the whole list, replacement characters
for invalid bytes included.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ptd_engine.errors import CheckpointError

REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SUPPORTED_DECODERS = (
    "ByteLevel",
    "ByteFallback",
    "Fuse",
    "Metaspace",
    "Replace (of a string)",
    "Strip (of leading characters)",
    "Sequence",
)


class Stage(Protocol):
    """One step from token strings to text."""

    def push(self, tokens: Sequence[str]) -> list[str]:
        """Take further tokens; return the pieces that are now final."""

    def flush(self) -> list[str]:
        """End of the list: return the pieces that were kept back."""


class ByteLevelStage:
    """Every token spells bytes, one character a byte; all bytes together are UTF-8."""

    def __init__(self) -> None:
        self._bytes = {char: value for value, char in byte_level_alphabet().items()}
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, tokens: Sequence[str]) -> list[str]:
        """See `Stage.push`."""
        return [self._utf8.decode(b"".join(map(self.raw, tokens)))]

    def flush(self) -> list[str]:
        """See `Stage.flush`."""
        return [self._utf8.decode(b"", final=True)]

    def raw(self, token: str) -> bytes:
        """The bytes that a token spells."""
        try:
            return bytes([self._bytes[char] for char in token])
        except KeyError:  # an added token with characters outside the alphabet stands for itself
            return token.encode("utf-8")


class ByteFallbackStage:
    """Tokens "<0xE4>" are bytes; a run of them is text if it is UTF-8, else U+FFFD for every byte.

    One invalid byte turns the whole run into replacement characters, so a run is kept until it
    ends.
    """

    def __init__(self) -> None:
        self._run = bytearray()

    def push(self, tokens: Sequence[str]) -> list[str]:
        """See `Stage.push`."""
        out: list[str] = []
        for token in tokens:
            if match := _BYTE_TOKEN.fullmatch(token):
                self._run.append(int(match[1], 16))
            else:
                out += [*self.flush(), token]
        return out

    def flush(self) -> list[str]:
        """See `Stage.flush`."""
        if not self._run:
            return []
        raw = bytes(self._run)
        self._run.clear()
        try:
            return [raw.decode("utf-8")]
        except UnicodeDecodeError:
            return [REPLACEMENT] * len(raw)


class ReplaceStage:
    """A substring of every token is replaced (SentencePiece: U+2581 by a space)."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def push(self, tokens: Sequence[str]) -> list[str]:
        """See `Stage.push`."""
        return [token.replace(self.old, self.new) for token in tokens]

    def flush(self) -> list[str]:
        """See `Stage.flush`."""
        return []


class StripStartStage:
    """Up to `count` leading characters leave every token, or, after Fuse, the text as a whole."""

    def __init__(self, char: str, count: int, fused: bool) -> None:
        self._char, self._count, self._fused = char, count, fused
        self._left = count

    def push(self, tokens: Sequence[str]) -> list[str]:
        """See `Stage.push`."""
        return [self._strip(token) for token in tokens]

    def flush(self) -> list[str]:
        """See `Stage.flush`."""
        return []

    def _strip(self, token: str) -> str:
        if not self._fused:
            self._left = self._count
        while self._left and token:
            if token[0] != self._char:
                self._left = 0
                break
            token = token[1:]
            self._left -= 1
        return token


class MetaspaceStage:
    """The replacement character is a space, except in the first token, where it was put in
    front.
    """

    def __init__(self, mark: str, prepended: bool) -> None:
        self.mark, self._first = mark, prepended

    def push(self, tokens: Sequence[str]) -> list[str]:
        """See `Stage.push`."""
        out = []
        for token in tokens:
            out.append(token.replace(self.mark, "" if self._first else " "))
            self._first = False
        return out

    def flush(self) -> list[str]:
        """See `Stage.flush`."""
        return []


def byte_level_alphabet() -> dict[int, str]:
    """GPT-2's printable character for every byte: itself if printable Latin-1, else U+0100
    onwards.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    alphabet = {value: chr(value) for value in printable}
    return alphabet | {value: chr(0x100 + i) for i, value in enumerate(others)}


def decoder_stages(spec: Mapping[str, Any] | None) -> list[Stage]:
    """Fresh stages for the "decoder" entry of a tokenizer.json.

    Raises:
        CheckpointError: a decoder without an incremental form here.
    """
    if spec is None:
        raise _unsupported("none")
    steps = spec["decoders"] if spec["type"] == "Sequence" else [spec]
    stages: list[Stage] = []
    fused = False
    for step in steps:
        kind = step["type"]
        if kind == "ByteLevel":
            stages.append(ByteLevelStage())
        elif kind == "ByteFallback":
            stages.append(ByteFallbackStage())
        elif kind == "Metaspace":
            stages.append(MetaspaceStage(step["replacement"], step["prepend_scheme"] != "never"))
        elif kind == "Replace" and "String" in step["pattern"] and not fused:
            stages.append(ReplaceStage(step["pattern"]["String"], step["content"]))
        elif kind == "Strip" and step["stop"] == 0:
            stages.append(StripStartStage(step["content"], step["start"], fused))
        elif kind == "Fuse":
            fused = True
        else:
            raise _unsupported(kind)
    return stages


def token_bytes(stages: Sequence[Stage], token: str) -> bytes:
    """What a token adds to the bytes of a text that it stands inside: part of a character where the
    token is one. Takes nothing from the stages' state and leaves it alone.
    """
    for stage in stages:
        if isinstance(stage, ByteLevelStage):
            return stage.raw(token)
        if isinstance(stage, ByteFallbackStage) and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        if isinstance(stage, ReplaceStage):
            token = token.replace(stage.old, stage.new)
        if isinstance(stage, MetaspaceStage):
            token = token.replace(stage.mark, " ")
    return token.encode("utf-8")


def _unsupported(kind: str) -> CheckpointError:
    return CheckpointError.for_field(
        "decoder of the tokenizer",
        kind,
        ", ".join(SUPPORTED_DECODERS),
        "This tokenizer cannot be decoded as a stream.",
    )
