"""Single tokens as bytes: inside a text they join to its bytes, also those of cut characters."""

from __future__ import annotations

import pytest
from text_samples import varied_strings

from ptd_engine.text import Tokenizer


@pytest.fixture(params=["byte_level", "sentencepiece_like"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Tokenizer)
    return found


def test_bytes_of_tokens_join_to_the_text(tokenizer: Tokenizer) -> None:
    for sample in ["a😀世界 é\n\tx", *varied_strings(100, ["<s>"], seed=8)]:
        ids = tokenizer.encode(sample, add_special_tokens=False)
        joined = b"".join(map(tokenizer.token_bytes, ids))
        # Decoding drops the space that a SentencePiece tokenizer puts in front of a text.
        whole = tokenizer.decode(ids, skip_special_tokens=False).encode()
        assert joined in (whole, b" " + whole)


def test_one_token_may_be_part_of_a_character(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🜚", add_special_tokens=False)
    parts = [tokenizer.token_bytes(token) for token in ids]
    assert b"".join(parts).lstrip() == "🜚".encode() and len(parts) > 1


def test_special_tokens_are_spelled_and_unknown_ids_are_nothing(tokenizer: Tokenizer) -> None:
    for spelling, token in tokenizer.special_tokens.items():
        assert tokenizer.token_bytes(token) == spelling.encode()
    assert tokenizer.token_bytes(tokenizer.vocab_size + 5) == b""
