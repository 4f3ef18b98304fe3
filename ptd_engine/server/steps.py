"""What a stream tells of its steps, for a page that shows drafting at work."""

from __future__ import annotations

from typing import Any

from ptd_engine.outputs import Chunk, StepTree
from ptd_engine.text import Tokenizer


class StepNotes:
    """Describes the steps of one stream, in order."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = tokenizer.decode_stream()
        self._spelled: dict[int, str] = {}
        self._steps = 0

    def of(self, chunk: Chunk) -> dict[str, Any]:
        """A step: its number, its tokens and its tree.

        The tokens' texts join to the text of the stream, except that a stop string is cut out of
        that one; a character in several tokens is in the last one's text.
        """
        self._steps += 1
        tokens = [
            {"id": token, "text": self._decoder.push([token]), "drafted": index < chunk.accepted}
            for index, token in enumerate(chunk.token_ids)
        ]
        note = {"index": self._steps, "tokens": tokens, "accepted": chunk.accepted}
        if chunk.tree is not None:
            note["tree"] = self._tree(chunk.tree)
        return note

    def _tree(self, tree: StepTree) -> dict[str, Any]:
        return {
            "tokens": [self._spell(token) for token in tree.token_ids],
            "parents": tree.parents,
            "n_verify": tree.n_verify,
            "accepted_rows": tree.accepted_rows,
        }

    def _spell(self, token: int) -> str:
        found = self._spelled.get(token)
        if found is None:
            found = self._tokenizer.token_bytes(token).decode("utf-8", "replace")
            self._spelled[token] = found
        return found
