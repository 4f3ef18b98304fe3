"""Streaming text: chunks join to the whole decoding and never cut a character."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_bpe import BYTES
from text_samples import varied_strings
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from ptd_engine.errors import CheckpointError
from ptd_engine.text import IncrementalDecoder, Tokenizer, load_tokenizer
from ptd_engine.text.decoder_stages import decoder_stages

LOST = "\ufffd"


def chunks_of(tokenizer: Tokenizer, ids: list[int], sizes: list[int], skip: bool) -> list[str]:
    """Push the ids in groups of the given sizes (repeated), then flush."""
    stream, out, at = tokenizer.decode_stream(skip_special_tokens=skip), [], 0
    while at < len(ids):
        size = sizes[len(out) % len(sizes)]
        out.append(stream.push(ids[at : at + size]))
        at += size
    return [*out, stream.flush()]


def byte_ids(tokenizer: Tokenizer, raw: bytes) -> list[int]:
    """The ids of single bytes, for both kinds of tokenizer."""
    vocab = tokenizer.hf.get_vocab()
    name = (lambda b: f"<0x{b:02X}>") if "<0xE4>" in vocab else BYTES.__getitem__
    return [vocab[name(b)] for b in raw]


def letter_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return [tokenizer.hf.get_vocab()[char] for char in text]


@pytest.fixture(params=["byte_level", "sentencepiece_like"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Tokenizer)
    return found


@pytest.mark.parametrize("skip", [True, False])
def test_chunks_join_to_the_whole_text(tokenizer: Tokenizer, skip: bool) -> None:
    rng = random.Random(5)
    for text in varied_strings(300, ["<|im_end|>", "</s>", "<s>"], seed=6):
        ids = tokenizer.encode(text)
        chunks = chunks_of(tokenizer, ids, [rng.randint(1, 5) for _ in range(4)], skip)
        assert "".join(chunks) == tokenizer.decode(ids, skip_special_tokens=skip)
        if LOST not in text:
            assert not any(LOST in chunk for chunk in chunks)


@pytest.mark.parametrize("skip", [True, False])
def test_any_ids_decode_as_the_library_decodes_them(tokenizer: Tokenizer, skip: bool) -> None:
    rng = random.Random(9)
    size = len(tokenizer.hf)
    raw = byte_ids(tokenizer, bytes(range(256)))
    for _ in range(1500):
        # Mostly single bytes: broken, over-long and surrogate UTF-8 in every arrangement.
        pool = [
            rng.choice(raw) if rng.random() < 0.8 else rng.randrange(size + 3) for _ in range(12)
        ]
        chunks = chunks_of(tokenizer, pool, [rng.randint(1, 3)], skip)
        assert "".join(chunks) == tokenizer.hf.decode(pool, skip_special_tokens=skip)


def test_no_arrangement_of_steps_changes_the_text(tokenizer: Tokenizer) -> None:
    size, raw = len(tokenizer.hf), byte_ids(tokenizer, bytes(range(256)))
    one_id = st.integers(0, size + 2) | st.sampled_from(raw)  # the last ids are no tokens

    @settings(settings.get_profile("ci"), max_examples=300)
    @given(
        ids=st.lists(one_id, max_size=24) | st.text(max_size=12).map(tokenizer.encode),
        sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any),
        skip=st.booleans(),
    )
    def check(ids: list[int], sizes: list[int], skip: bool) -> None:
        whole = tokenizer.decode(ids, skip_special_tokens=skip)
        chunks = chunks_of(tokenizer, ids, sizes, skip)
        assert "".join(chunks) == whole
        assert LOST in whole or not any(LOST in chunk for chunk in chunks)

    check()


def test_what_is_pending_is_what_flush_would_return(tokenizer: Tokenizer) -> None:
    stream = tokenizer.decode_stream()
    for token in byte_ids(tokenizer, "é世😀".encode() + b"\xe4"):
        before = stream.pending()
        assert before == stream.pending()
        assert stream.push([]) == ""
        assert before == stream.pending()
        stream.push([token])
    assert stream.pending() == stream.flush() != ""
    assert stream.pending() == ""


def test_valid_prefix_is_emitted_before_the_end(tokenizer: Tokenizer) -> None:
    ids = [
        *letter_ids(tokenizer, "a"),
        *byte_ids(tokenizer, "😀世界".encode()),
        *letter_ids(tokenizer, "b"),
    ]
    stream = tokenizer.decode_stream()
    chunks = [stream.push([token]) for token in ids]
    assert "".join(chunks) == "a😀世界b"
    assert stream.flush() == ""
    assert not any(LOST in chunk for chunk in chunks)


def test_byte_level_characters_come_one_by_one(byte_level: Tokenizer) -> None:
    ids = byte_ids(byte_level, "a😀世界".encode())
    chunks = chunks_of(byte_level, ids, [1], True)
    assert [chunk for chunk in chunks if chunk] == ["a", "😀", "世", "界"]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_unfinished_tail_is_flushed_once(tokenizer: Tokenizer, cut: int) -> None:
    ids = [*letter_ids(tokenizer, "a"), *byte_ids(tokenizer, "😀".encode()[:cut])]
    whole = tokenizer.decode(ids)
    assert whole.startswith("a" + LOST)
    stream = tokenizer.decode_stream()
    assert "".join(stream.push([token]) for token in ids) == "a"
    assert "a" + stream.flush() == whole
    assert stream.flush() == ""


def test_a_prefix_decoding_that_is_no_prefix_of_the_text(sentencepiece_like: Tokenizer) -> None:
    # decode(ids[:3]) is "世", decode(ids) is four replacement characters: nothing may go out early.
    ids = byte_ids(sentencepiece_like, "世".encode() + b"\xff")
    assert sentencepiece_like.decode(ids[:3]) == "世"
    assert sentencepiece_like.decode(ids) == LOST * 4
    assert chunks_of(sentencepiece_like, ids, [1], True) == ["", "", "", "", LOST * 4]


def test_sentencepiece_spaces_are_kept(sentencepiece_like: Tokenizer) -> None:
    vocab = sentencepiece_like.hf.get_vocab()
    ids = [vocab[t] for t in ("\u2581the", "\u2581dog", "\u2581\u2581", "\u2581the", "\u2581")]
    chunks = chunks_of(sentencepiece_like, ids, [1], True)
    assert chunks == ["the", " dog", "  ", " the", " ", ""]
    assert "".join(chunks) == sentencepiece_like.decode(ids)


def test_special_tokens_are_skipped_and_do_not_break_characters(byte_level: Tokenizer) -> None:
    first, second = byte_ids(byte_level, b"\xc3\xa9")
    special = byte_level.hf.convert_tokens_to_ids("<|im_end|>")
    ids = [first, special, second]
    assert "".join(chunks_of(byte_level, ids, [1], True)) == byte_level.decode(ids) == "é"
    shown = "".join(chunks_of(byte_level, ids, [1], False))
    assert shown == byte_level.decode(ids, skip_special_tokens=False) == LOST + "<|im_end|>" + LOST


class CountingStage:
    """Passes tokens on and counts them."""

    def __init__(self) -> None:
        self.seen = 0

    def push(self, tokens: Sequence[str]) -> list[str]:
        self.seen += len(tokens)
        return list(tokens)

    def flush(self) -> list[str]:
        return []


def test_every_token_is_looked_at_once(tokenizer: Tokenizer) -> None:
    # The cost of a token must not depend on the length of the output before it.
    ids = tokenizer.encode("the dog 😀 " * 200)
    lookups: list[int] = []
    first, last = CountingStage(), CountingStage()
    stages = [
        first,
        *decoder_stages(json.loads(tokenizer.hf.backend_tokenizer.to_str())["decoder"]),
    ]
    names = tokenizer.hf.backend_tokenizer.id_to_token

    def token_of(token: int) -> str | None:
        lookups.append(token)
        return names(token)

    stream = IncrementalDecoder(token_of, [*stages, last], ())
    text = "".join(stream.push([token]) for token in ids) + stream.flush()
    assert text == tokenizer.decode(ids, skip_special_tokens=False)
    assert lookups == ids
    assert first.seen == len(ids) and last.seen <= 2 * len(ids)


def bare(decoder: decoders.Decoder | None) -> PreTrainedTokenizerFast:
    backend = Backend(models.BPE(vocab={"\u2581a": 0, "\u2581": 1, "b\u2581": 2}, merges=[]))
    if decoder is not None:
        backend.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Metaspace(),
        decoders.Metaspace(prepend_scheme="never"),
        decoders.Sequence([decoders.Strip("\u2581", 1, 0), decoders.Replace("\u2581", " ")]),
        decoders.Sequence([decoders.Fuse(), decoders.Strip("\u2581", 2, 0)]),
    ],
)
def test_other_decoders_of_hugging_face_files(decoder: decoders.Decoder) -> None:
    tokenizer = Tokenizer(bare(decoder), ())
    for ids in ([0, 0, 1, 2, 0], [1, 1, 1, 0], [2, 0], []):
        assert "".join(chunks_of(tokenizer, ids, [1], True)) == tokenizer.hf.decode(ids)


@pytest.mark.parametrize("decoder", [decoders.CTC(), None])
def test_a_decoder_without_a_streaming_form_is_refused_at_load(
    decoder: decoders.Decoder | None,
) -> None:
    with pytest.raises(CheckpointError, match="decoder of the tokenizer"):
        Tokenizer(bare(decoder), ())


def test_demo_chunks_join(demo_path: Path) -> None:
    demo = load_tokenizer(demo_path)
    for text in varied_strings(200, ["<|im_end|>"], seed=10):
        ids = demo.encode(text)
        assert "".join(chunks_of(demo, ids, [1, 3], True)) == demo.decode(ids)
