"""Toys: an LLM whose output and whose accepted blocks are given, watched at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from ptd_engine import LLM, SamplingParams, _core
from ptd_engine.engine import Engine, Generation, StepTokens
from ptd_engine.outputs import Chunk, GenerationOutput
from ptd_engine.testing.forced import FixedBlocks
from ptd_engine.testing.toy import NextToken, ToyRunner, scripted
from ptd_engine.text import Tokenizer
from ptd_engine.text.decoder_stages import byte_level_alphabet

PROMPT, OTHER, EOS = 0, 1, 2  # ids of every toy vocabulary
CONTEXT = 512
BLOCKS: tuple[tuple[int, ...], ...] = ((0,), (1,), (3,), (99,), (0, 2, 5))


@pytest.fixture(params=BLOCKS, ids=lambda blocks: "accepts " + ",".join(map(str, blocks)))
def blocks(request: pytest.FixtureRequest) -> tuple[int, ...]:
    """How many candidates the steps of a request accept; (0,) is plain decoding."""
    found: tuple[int, ...] = request.param
    return found


class WatchedEngine(Engine):
    """Keeps its last request, so that a test can look at it between steps."""

    last: Generation

    def generate(self, *args: Any, **kwargs: Any) -> Generation:
        self.last = super().generate(*args, **kwargs)
        return self.last


def tokenizer_of(pieces: Sequence[str], kind: str = "joined") -> Tokenizer:
    """Ids 0, 1, 2 are the prompt's token, another one and EOS (special); then the pieces in order.

    Kinds: "joined" (a token's text as it is), "bytes" (byte-level: a piece is Latin-1 for its
    bytes), "sentencepiece" (U+2581 is a space, "<0xE4>" a byte, the first space is dropped).
    """
    alphabet = byte_level_alphabet()
    if kind == "bytes":
        pieces = ["".join(alphabet[byte] for byte in piece.encode("latin-1")) for piece in pieces]
    spell = {
        "joined": decoders.Fuse(),
        "bytes": decoders.ByteLevel(),
        "sentencepiece": decoders.Sequence(
            [
                decoders.Replace("\u2581", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        ),
    }
    # An id that `ids_of` never gives takes the place of "<eos>" among the pieces.
    names = ["<prompt>", "<other>", "<eos>"]
    names += ["<unused>" if piece == "<eos>" else piece for piece in pieces]
    backend = Backend(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    backend.decoder = spell[kind]
    backend.add_special_tokens([AddedToken("<eos>", special=True)])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), ())


def ids_of(pieces: Sequence[str]) -> list[int]:
    """The ids that `toy` gives to the tokens of an output."""
    unique = list(dict.fromkeys(pieces))
    return [EOS if piece == "<eos>" else 3 + unique.index(piece) for piece in pieces]


def engine_of(
    next_token: NextToken,
    drafter: _core.Drafter,
    *,
    vocab_size: int = 64,
    max_seq_len: int = CONTEXT,
    eos: Sequence[int] = (),
    runner: Callable[..., ToyRunner] = ToyRunner,
) -> WatchedEngine:
    """An engine over any toy model."""
    return WatchedEngine(
        runner(next_token, max_seq_len=max_seq_len, vocab_size=vocab_size),
        drafter,
        max_seq_len=max_seq_len,
        vocab_size=vocab_size,
        eos_token_ids=eos,
    )


def llm_of(engine: Engine, tokenizer: Tokenizer) -> LLM:
    """An LLM without a model: nothing but `with_drafter` would look at it."""
    model: Any = None
    return LLM(engine, tokenizer, model)


def toy(
    pieces: Sequence[str],
    blocks: Sequence[int] = (99,),
    *,
    kind: str = "joined",
    eos: Sequence[int] = (EOS,),
    max_seq_len: int = CONTEXT,
) -> LLM:
    """Answers [PROMPT] with these tokens ("<eos>" is EOS), then with OTHER for ever.

    `blocks`: the candidates that step i gets accepted, each in front of a wrong sibling.
    """
    unique = list(dict.fromkeys(piece for piece in pieces))
    script = ids_of(pieces)
    engine = engine_of(
        scripted(script, prompt_len=1, other=OTHER),
        FixedBlocks(script, blocks, decoys=[PROMPT, EOS]),
        vocab_size=3 + len(unique),
        max_seq_len=max_seq_len,
        eos=eos,
    )
    return llm_of(engine, tokenizer_of(unique, kind))


def read_into(found: list[int], steps: Iterable[StepTokens | Chunk]) -> None:
    """Append the tokens of every step as it comes, also of those before an error."""
    for step in steps:
        found += step.token_ids


def check_request(generation: Generation, prompt_len: int) -> None:
    """What holds after every step."""
    emitted = len(generation.token_ids)
    assert generation.kv_len == prompt_len + emitted - 1
    assert generation.stats.tokens == emitted


def chunks_of(
    llm: LLM, params: SamplingParams, prompt: Sequence[int] = (PROMPT,)
) -> tuple[list[Chunk], GenerationOutput]:
    """Stream to the end, checking every step; returns the chunks and the output."""
    engine = llm.engine
    assert isinstance(engine, WatchedEngine)
    chunks: list[Chunk] = []
    for chunk in llm.stream(list(prompt), params):
        chunks.append(chunk)
        if params.max_new_tokens != 0:
            check_request(engine.last, len(prompt))
    output = chunks[-1].output
    assert output is not None and [c.output for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert "".join(chunk.text for chunk in chunks) == output.text
    assert [token for chunk in chunks for token in chunk.token_ids] == output.token_ids
    assert output.usage.completion_tokens == len(output.token_ids) == output.stats.tokens
    assert sum(chunk.accepted for chunk in chunks) == output.stats.accepted
    return chunks, output


def answer(
    pieces: Sequence[str], blocks: Sequence[int] = (99,), kind: str = "joined", **params: Any
) -> GenerationOutput:
    """Output of a toy, checked at every step."""
    settings = {"max_new_tokens": len(pieces), **params}
    return chunks_of(toy(pieces, blocks, kind=kind), SamplingParams(**settings))[1]
