"""What a request returns, whole or in chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

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
class TokenLogprobs:
    """How likely the model held a token of the output, and what it held likeliest there.

    Log-probabilities are those of the model's own logits, before penalties, biases, temperature and
    filters (log-softmax). -inf where a logit is.

    Attributes:
        token_id: the token of the output.
        logprob: its own.
        top: (token id, log-probability) of the likeliest tokens, best first, equal ones by id.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, which has no infinity: None stands for -inf."""
        return {
            "token_id": self.token_id,
            "logprob": _finite(self.logprob),
            "top": [{"token_id": token, "logprob": _finite(value)} for token, value in self.top],
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """A finished generation.

    Attributes:
        text: the decoded output, special tokens left out, cut at the stop string that ended it.
        token_ids: every generated token; the one that stopped it (an end-of-sequence id, a stop id,
            the token that completed a stop string) is the last.
        finish_reason: "stop" (one of those) or "length" (max_new_tokens or the context limit). At
            one token "stop" goes before "length".
        usage: token counts.
        stats: how it was decoded.
        logprobs: one entry a token; None where the request did not ask for them.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    usage: Usage
    stats: GenerationStats
    logprobs: list[TokenLogprobs] | None = None


@dataclass(frozen=True, slots=True)
class StepTree:
    """The rows of a step, in order: the root (the last token before it), candidates, drafts.

    Attributes:
        token_ids: one a row.
        parents: row of each row's parent, which stands before it; -1 for the root.
        n_verify: the root and the candidates are the rows below it, drafts the others.
        accepted_rows: the path of accepted candidates, from the top, `Chunk.accepted` of them.
    """

    token_ids: list[int]
    parents: list[int]
    n_verify: int
    accepted_rows: list[int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a stream: what one step added.

    Attributes:
        text: new text; may be empty while a character is incomplete or a stop string may have
            begun. The chunks' texts join to the output's text.
        token_ids: the step's tokens (empty in the final chunk).
        accepted: how many of them, from the first on, were drafted.
        output: the whole result, in the final chunk only.
        logprobs: one entry for each of `token_ids`; None where the request did not ask for them.
        tree: the step's, where the stream was asked for trees; None in the final chunk.
    """

    text: str
    token_ids: list[int]
    accepted: int = 0
    output: GenerationOutput | None = None
    logprobs: list[TokenLogprobs] | None = None
    tree: StepTree | None = None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the output ended, in the final chunk; None before."""
        return self.output.finish_reason if self.output is not None else None


class ChunkStream(Generator[Chunk, None, None]):
    """The chunks of one request, a generator that any thread may close.

    `close` cancels the request: the engine is free at once, or, where a step is running, after that
    step. The final chunk is missing then. Dropping the stream does the same, and so does the end of
    a `with` block over it.
    """

    def __init__(self, chunks: Generator[Chunk, None, None], cancel: Callable[[], None]) -> None:
        """Wrap the chunks of a request.

        Args:
            chunks: ends without a final chunk when the request was cancelled.
            cancel: cancels the request; may be called at any time, from any thread.
        """
        self._chunks = chunks
        self._cancel = cancel
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(self, value: None) -> Chunk:
        """Wait for the next chunk."""
        if self._closed:
            raise StopIteration
        return self._chunks.send(value)

    def throw(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> Chunk:
        """Cancel the request and raise the exception."""
        self.close()
        return super().throw(typ, val, tb)  # type: ignore[arg-type]

    def close(self) -> None:
        """Cancel the request; does nothing after its end."""
        self._closed = True
        self._cancel()
