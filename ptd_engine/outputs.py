"""What a request returns, whole or in chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ptd_engine.metrics import GenerationStats

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """A finished generation.

    Attributes:
        text: the decoded output, special tokens left out.
        token_ids: every generated token; an end-of-sequence id that stopped it is the last.
        finish_reason: "stop" (an end-of-sequence or stop id) or "length" (max_new_tokens or the
            context limit).
        usage: token counts.
        stats: how it was decoded.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    usage: Usage
    stats: GenerationStats


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a stream: what one step added.

    Attributes:
        text: new text; may be empty while a character is incomplete. The chunks' texts join to the
            output's text.
        token_ids: the step's tokens (empty in the final chunk).
        accepted: how many of them, from the first on, were drafted.
        output: the whole result, in the final chunk only.
    """

    text: str
    token_ids: list[int]
    accepted: int = 0
    output: GenerationOutput | None = None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the output ended, in the final chunk; None before."""
        return self.output.finish_reason if self.output is not None else None
