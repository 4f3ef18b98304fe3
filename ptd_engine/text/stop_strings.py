"""Stop strings: where the text of an output ends, decided token by token."""

from __future__ import annotations

from collections.abc import Sequence

from ptd_engine.text.decoder_stages import REPLACEMENT
from ptd_engine.text.stream import IncrementalDecoder


class StopStrings:
    """The text of one output up to its first stop string.

    After every token the text is what the tokens so far decode to, so the token at which an output
    ends does not depend on how many tokens a step commits. Of the matches in that text the earliest
    counts, of those that begin together the longest. A stop string that holds U+FFFD is looked for
    only in text that is final: part of a character is not a replacement character yet.

    Text that may be the beginning of a stop string is kept back until it is decided. Work per token
    grows with the stop strings, not with the output.
    """

    def __init__(
        self, decoder: IncrementalDecoder, strings: Sequence[str], *, include: bool = False
    ) -> None:
        """Watch one output.

        Args:
            decoder: a fresh decoder.
            strings: the stop strings, at least one, none of them empty.
            include: the stop string stays at the end of the text.
        """
        self._decoder = decoder
        self._strings = tuple(strings)
        self._include = include
        self._held = ""  # final text that was not released: the beginning of a stop string
        self._released: list[str] = []
        self._stopped = False

    def stops_at(self, token: int) -> bool:
        """Take the next token; whether a stop string ends the output with it."""
        held = self._held + (new := self._decoder.push([token]))
        # A token that gives text leaves part of a character behind at most, one that gives none
        # may have completed a character that is not final before the next token is seen.
        found = self._first_match(held, "" if new else self._decoder.pending())
        if found is not None:
            self._stopped = True
            self._held, text = "", found
        else:
            text, self._held = self._split(held)
        self._released.append(text)
        return self._stopped

    def take(self) -> str:
        """The text that was released since the last call."""
        text = "".join(self._released)
        self._released.clear()
        return text

    def finish(self) -> str:
        """The rest of the text, once; to be called after the last token."""
        if self._stopped:
            return self.take()
        self._released += [self._held, self._decoder.flush()]
        self._held = ""
        return self.take()

    def _first_match(self, final: str, pending: str) -> str | None:
        """The text up to the stop string that ends it, None without one."""
        text = final + pending
        best: tuple[int, int] | None = None  # (begin, -length)
        for string in self._strings:
            begin = (final if REPLACEMENT in string else text).find(string)
            if begin >= 0 and (best is None or (begin, -len(string)) < best):
                best = (begin, -len(string))
        if best is None:
            return None
        begin, length = best[0], -best[1]
        return text[: begin + length if self._include else begin]

    def _split(self, text: str) -> tuple[str, str]:
        """Text that no later token can make part of a stop string, and the rest."""
        begin = min(_partial_begin(text, string) for string in self._strings)
        return text[:begin], text[begin:]


def _partial_begin(text: str, string: str) -> int:
    """Where the longest suffix of `text` starts that begins `string`; len(text) without one."""
    at = text.find(string[0], max(0, len(text) - len(string) + 1))
    while at >= 0 and not string.startswith(text[at:]):
        at = text.find(string[0], at + 1)
    return at if at >= 0 else len(text)
