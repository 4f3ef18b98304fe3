"""Token ids -> text while they arrive."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence

from ptd_engine.text.decoder_stages import Stage


class IncrementalDecoder:
    """Decodes one output as its tokens arrive, in constant time per token.

    `"".join` of all that `push` and the final `flush` return equals `Tokenizer.decode` of all ids.
    A chunk never ends inside a character: U+FFFD appears only where the whole text has it, that is
    for bytes that can no longer become valid UTF-8. Like `decode`, a SentencePiece tokenizer drops
    the one space in front of the very first word; every other space is kept.
    """

    def __init__(
        self,
        token_of: Callable[[int], str | None],
        stages: Sequence[Stage],
        skipped: Collection[str],
    ) -> None:
        """Join the stages to one decoder.

        Args:
            token_of: the token string of an id, None for an id without one (it gives no text).
            stages: fresh stages, in order.
            skipped: the token strings that give no text (special tokens).
        """
        self._token_of = token_of
        self._stages = stages
        self._skipped = skipped

    def push(self, ids: Sequence[int]) -> str:
        """The text that became final with these ids; may be empty."""
        tokens = [token for token in map(self._token_of, ids) if token is not None]
        return _through(self._stages, [t for t in tokens if t not in self._skipped])

    def flush(self) -> str:
        """The text that was kept back, once; to be called after the last `push`."""
        return _flush(self._stages)

    def pending(self) -> str:
        """What `flush` would return now; nothing changes."""
        return _flush(copy.deepcopy(self._stages))


def _flush(stages: Sequence[Stage]) -> str:
    return "".join(
        _through(stages[index + 1 :], stage.flush()) for index, stage in enumerate(stages)
    )


def _through(stages: Sequence[Stage], tokens: Sequence[str]) -> str:
    for stage in stages:
        tokens = stage.push(tokens)
    return "".join(tokens)
