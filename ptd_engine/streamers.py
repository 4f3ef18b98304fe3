"""Streamers as transformers has them (TextStreamer, TextIteratorStreamer): objects that are handed
token ids while they are generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

import torch
from torch import Tensor

from ptd_engine.errors import ConfigError


class Streamer(Protocol):
    """What is called while a request runs."""

    def put(self, value: Tensor) -> object:
        """Take ids, int64 on the CPU: first the prompt, [1, n], then each token, [1]."""
        ...

    def end(self) -> object:
        """Nothing more comes."""
        ...


class Feed:
    """Feeds a streamer, or nobody. `end` is called whatever happens, for somebody may wait for it.

    Use as a context manager around the whole request.
    """

    def __init__(self, streamer: Streamer | None) -> None:
        """Take a streamer.

        Raises:
            ConfigError: it cannot be called as one.
        """
        if streamer is not None and not all(
            callable(getattr(streamer, name, None)) for name in ("put", "end")
        ):
            raise ConfigError.for_field(
                "streamer", streamer, "an object with put(ids) and end(), as TextStreamer has them"
            )
        self._streamer = streamer

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._streamer is not None:
            self._streamer.end()

    def prompt(self, token_ids: Sequence[int]) -> None:
        """Hand over the prompt, before the first token."""
        if self._streamer is not None:
            self._streamer.put(torch.tensor([list(token_ids)], dtype=torch.int64))

    def tokens(self, token_ids: Sequence[int]) -> None:
        """Hand over tokens of the output, one by one."""
        if self._streamer is not None:
            for token in token_ids:
                self._streamer.put(torch.tensor([token], dtype=torch.int64))
