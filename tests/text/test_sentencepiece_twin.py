"""A SentencePiece model trained here, in GGUF form, against the sentencepiece library itself."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from text_samples import CORPUS, varied_strings, write_metadata

from ptd_engine.text import load_tokenizer

spm = pytest.importorskip("sentencepiece", reason="the library is the reference of this test")


def test_ids_equal_sentencepiece(tmp_path: Path) -> None:
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.split(". ") * 4),
        model_writer=model,
        model_type="bpe",
        vocab_size=520,
        hard_vocab_limit=False,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    reference = spm.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(reference.GetPieceSize())
    kinds = [
        2
        if reference.IsUnknown(i)
        else 3
        if reference.IsControl(i)
        else 6
        if reference.IsByte(i)
        else 1
        for i in ids
    ]
    path = write_metadata(
        tmp_path / "m.gguf",
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [reference.IdToPiece(i) for i in ids],
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.scores": [reference.GetScore(i) for i in ids],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        },
    )
    tokenizer = load_tokenizer(path)
    for text in varied_strings(1000, ["dog"], seed=8):
        if "\u0000" in text or "\u2581" in text:
            continue  # U+2581 and NUL are the library's own marks
        found = tokenizer.encode(text, add_special_tokens=False)
        assert found == reference.EncodeAsIds(text), repr(text)
