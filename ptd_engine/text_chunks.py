"""A generation as text, a chunk a step: what a stream of the `LLM` yields."""

from __future__ import annotations

import logging
from collections.abc import Generator
from dataclasses import replace

from ptd_engine import text
from ptd_engine.config import ResolvedParams
from ptd_engine.engine import Engine
from ptd_engine.generation import Generation
from ptd_engine.outputs import Chunk, ChunkStream, GenerationOutput, TokenLogprobs, Usage

_log = logging.getLogger(__name__)


def stream_text(
    engine: Engine,
    tokenizer: text.Tokenizer,
    prompt: list[int],
    params: ResolvedParams,
    *,
    trees: bool = False,
) -> ChunkStream:
    """Begin a request whose chunks hold text.

    Not a generator itself: a bad prompt fails at the call, not at the first chunk.

    Args:
        trees: let every chunk hold the step's tree.

    Raises:
        PromptError, ConfigError, BusyError: as `Engine.generate`.
    """
    params = _with_special_stops(params, tokenizer, engine.vocab_size)
    decoder = tokenizer.decode_stream()
    stops = None
    if params.stop_strings:
        stops = text.StopStrings(decoder, params.stop_strings, include=params.include_stop_str)
    generation = engine.generate(prompt, params, None if stops is None else stops.stops_at)
    return ChunkStream(_chunks(generation, len(prompt), decoder, stops, trees), generation.close)


def _with_special_stops(
    params: ResolvedParams, tokenizer: text.Tokenizer, vocab_size: int
) -> ResolvedParams:
    """Let a stop string that spells a special token stop at that token: it leaves no text."""
    special = tokenizer.special_tokens
    ids = {special[stop] for stop in params.stop_strings if stop in special}
    for stop in params.stop_strings:
        inside = [token for token in special if token in stop and token != stop]
        if stop not in special and inside:
            _log.warning(
                "stop=%r holds the special token %r (id %d), which leaves no text: it can only "
                "match where the model spells it out. Stop at one of them: the text beside it "
                "(stop), or the token (stop_token_ids=[%d]).",
                stop,
                inside[0],
                special[inside[0]],
                special[inside[0]],
            )
    ids = {token for token in ids if token < vocab_size}
    if not ids:
        return params
    return replace(params, stop_token_ids=(*params.stop_token_ids, *sorted(ids)))


def _chunks(
    generation: Generation,
    prompt_tokens: int,
    decoder: text.IncrementalDecoder,
    stops: text.StopStrings | None,
    trees: bool,
) -> Generator[Chunk, None, None]:
    pieces: list[str] = []
    logprobs: list[TokenLogprobs] = []
    try:
        for step in generation:
            # With stop strings the session has shown the step's tokens to `stops` already.
            pieces.append(decoder.push(step.token_ids) if stops is None else stops.take())
            logprobs += step.logprobs or ()
            tree = generation.tree if trees else None
            yield Chunk(pieces[-1], step.token_ids, step.accepted, None, step.logprobs, tree)
    finally:
        generation.close()
    if generation.finish_reason is None:  # closed by another thread
        return
    pieces.append(decoder.flush() if stops is None else stops.finish())
    token_ids = generation.token_ids
    output = GenerationOutput(
        text="".join(pieces),
        token_ids=token_ids,
        finish_reason=generation.finish_reason,
        usage=Usage(prompt_tokens=prompt_tokens, completion_tokens=len(token_ids)),
        stats=generation.stats,
        logprobs=None if generation.params.logprobs is None else logprobs,
    )
    yield Chunk(pieces[-1], [], 0, output)
