"""GGUF tokenizers equal a literal implementation of their rules."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment
from reference_bpe import SPLITTERS, ByteLevelReference, SentencePieceReference
from text_samples import (
    SPECIALS,
    USER_DEFINED,
    byte_level_metadata,
    sentencepiece_metadata,
    varied_strings,
    write_metadata,
)

from ptd_engine.checkpoint.gguf_header import read_gguf_header
from ptd_engine.errors import CheckpointError
from ptd_engine.text import Tokenizer, load_tokenizer
from ptd_engine.text.pre_tokenizers import RULES

TEMPLATE = (
    "{% for message in messages %}\n  {{ bos_token if loop.first }}"
    "{{ '<|im_start|>' + message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MESSAGES = [{"role": "user", "content": "Hi  there"}, {"role": "assistant", "content": "12 <b>"}]


def build(tmp_path: Path, metadata: dict[str, Any], **changes: Any) -> Tokenizer:
    """The tokenizer of a metadata-only file; a value None removes the key."""
    merged = {**metadata, **{f"tokenizer.{k.replace('__', '.')}": v for k, v in changes.items()}}
    kept = {k: v for k, v in merged.items() if v is not None}
    return load_tokenizer(write_metadata(tmp_path / "m.gguf", kept))


@pytest.mark.parametrize("pre", SPLITTERS)
def test_byte_level_equals_the_literal_rules(pre: str, tmp_path: Path) -> None:
    metadata = byte_level_metadata(pre)
    tokenizer = build(tmp_path, metadata)
    reference = ByteLevelReference(
        metadata["tokenizer.ggml.tokens"],
        metadata["tokenizer.ggml.merges"],
        [*SPECIALS, *USER_DEFINED],
        pre,
    )
    texts = varied_strings(1000, [*SPECIALS, *USER_DEFINED])
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == reference.encode(text), repr(text)
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        # Qwen's tokenizer composes characters, between added tokens.
        assert decoded == (unicodedata.normalize("NFC", text) if pre == "qwen2" else text)
        assert tokenizer.decode(ids) == reference.decode(ids, SPECIALS)


def test_every_rule_has_a_literal_twin_or_is_an_alias_of_one() -> None:
    twins = [RULES[name] for name in SPLITTERS]
    others = {name for name, rule in RULES.items() if rule not in twins}
    # qwen2's expression without NFC: the expression is covered by qwen2, the rest by gpt-2.
    assert others == {"deepseek-r1-qwen"}
    assert RULES["deepseek-r1-qwen"].pattern == RULES["qwen2"].pattern


def test_demo_equals_the_literal_rules(demo_path: Path) -> None:
    header = read_gguf_header(demo_path)
    tokens, types = (
        header.strings("tokenizer.ggml.tokens"),
        header.numbers("tokenizer.ggml.token_type"),
    )
    specials = [t for t, kind in zip(tokens, types, strict=True) if kind == 3]
    reference = ByteLevelReference(
        tokens, header.strings("tokenizer.ggml.merges"), specials, "smollm"
    )
    tokenizer = load_tokenizer(demo_path)
    texts = varied_strings(1000, specials, seed=2)
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text), repr(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == reference.representable(text)
        assert tokenizer.decode(ids) == reference.decode(ids, specials)
    # The vocabulary lacks some control characters and the lead bytes of planes 4 to 11.
    ordinary = [t for t in texts if all(c in "\n\r\t" or " " <= c < "\U00030000" for c in t)]
    assert len(ordinary) > 600
    assert all(reference.representable(text) == text for text in ordinary)
    assert tokenizer.eos_token_ids[0] == 2
    assert tokenizer.hf.eos_token == "<|im_end|>"
    source = header.string("tokenizer.chat_template")
    wanted = Environment().from_string(source).render(messages=MESSAGES, add_generation_prompt=True)
    assert tokenizer.render_chat(MESSAGES) == wanted
    assert tokenizer.apply_chat_template(MESSAGES) == reference.encode(wanted)


def test_sentencepiece_equals_the_literal_rules(sentencepiece_like: Tokenizer) -> None:
    metadata = sentencepiece_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    table = zip(
        tokens,
        metadata["tokenizer.ggml.token_type"],
        metadata["tokenizer.ggml.scores"],
        strict=True,
    )
    scores = {token: score for token, kind, score in table if kind == 1}
    added = ["<unk>", "<s>", "</s>", "<|im_end|>", "<tool>"]
    reference = SentencePieceReference(tokens, scores, added)
    texts = varied_strings(1000, ["<s>", "</s>", "<|im_end|>", "<tool>"], seed=3)
    for text in [*texts, "     ", "the dog  the   dog    hello        world", "          x"]:
        ids = sentencepiece_like.encode(text, add_special_tokens=False)
        assert ids == reference.encode(text), repr(text)
        if not any(token in text for token in added):
            assert sentencepiece_like.decode(ids) == text
    assert sentencepiece_like.encode("the") == [1, *reference.encode("the")]


def test_sentencepiece_without_space_prefix(tmp_path: Path) -> None:
    tokenizer = build(tmp_path, sentencepiece_metadata(), ggml__add_space_prefix=False)
    ids = tokenizer.encode("the dog", add_special_tokens=False)
    assert tokenizer.hf.convert_ids_to_tokens(ids) == ["the", "\u2581dog"]
    assert tokenizer.decode(tokenizer.encode(" the dog")) == " the dog"


@pytest.mark.parametrize(
    ("pre", "stored", "starts_with_bos"),
    [
        ("smollm", None, False),
        ("smollm", True, True),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
    ],
)
def test_bos_is_added_where_the_file_or_the_family_says_so(
    pre: str, stored: bool | None, starts_with_bos: bool, tmp_path: Path
) -> None:
    tokenizer = build(tmp_path, byte_level_metadata(pre), ggml__add_bos_token=stored)
    assert (tokenizer.encode("dog")[0] == tokenizer.bos_token_id) == starts_with_bos
    assert tokenizer.encode("dog", add_special_tokens=False)[0] != tokenizer.bos_token_id


@pytest.mark.parametrize("bos", ["$A", "a:b", ":0", "<s> :"])
def test_bos_may_have_any_text(bos: str, tmp_path: Path) -> None:
    metadata = byte_level_metadata()
    tokens = [SPECIALS[0], bos, *metadata["tokenizer.ggml.tokens"][2:]]
    tokenizer = build(
        tmp_path,
        metadata,
        ggml__tokens=tokens,
        ggml__add_bos_token=True,
        ggml__add_eos_token=True,
    )
    assert tokenizer.encode("1") == [1, tokens.index("1"), 2]


def test_eos_ids_are_the_union_of_declared_and_known_ends(tmp_path: Path) -> None:
    metadata = byte_level_metadata()
    assert build(tmp_path, metadata).eos_token_ids == (2, 0)
    tokenizer = build(tmp_path, metadata, ggml__eos_token_id=0, ggml__eot_token_id=1)
    assert tokenizer.eos_token_ids == (0, 1, 2)


def test_an_end_text_counts_only_as_a_control_token(tmp_path: Path) -> None:
    metadata = byte_level_metadata()
    types = [1, 3, 3, *metadata["tokenizer.ggml.token_type"][3:]]
    tokenizer = build(tmp_path, metadata, ggml__token_type=types)
    assert tokenizer.eos_token_ids == (2,)


def test_chat_template_renders_as_jinja_does_and_never_doubles_bos(tmp_path: Path) -> None:
    tokenizer = build(
        tmp_path, byte_level_metadata("llama-bpe"), chat_template=TEMPLATE, ggml__add_bos_token=True
    )
    environment = Environment(trim_blocks=True, lstrip_blocks=True)
    wanted = environment.from_string(TEMPLATE).render(
        messages=MESSAGES, add_generation_prompt=True, bos_token=tokenizer.hf.bos_token
    )
    assert tokenizer.render_chat(MESSAGES) == wanted
    ids = tokenizer.apply_chat_template(MESSAGES)
    assert tokenizer.decode(ids, skip_special_tokens=False) == wanted
    assert ids.count(tokenizer.bos_token_id) == wanted.count("<|im_start|>")


def test_vocab_size_leaves_the_padding_out(tmp_path: Path) -> None:
    metadata = byte_level_metadata()
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert (tokens[-1], types[-1]) == ("[PAD7]", 5)
    assert build(tmp_path, metadata).vocab_size == len(tokens) - 1
    padded = build(
        tmp_path,
        metadata,
        ggml__tokens=[*tokens, "[PAD8]", "[PAD9]"],
        ggml__token_type=[*types, 5, 5],
    )
    assert padded.vocab_size == len(tokens) - 1
    # Unused tokens before a real one are not the tail; without kinds there is no padding.
    last = build(tmp_path, metadata, ggml__tokens=[*tokens, "<z>"], ggml__token_type=[*types, 3])
    assert last.vocab_size == len(tokens) + 1
    assert build(tmp_path, metadata, ggml__token_type=None).vocab_size == len(tokens)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"ggml__pre": "martian"}, "martian.*smollm"),
        ({"ggml__model": "t5"}, "t5.*gpt2, llama"),
        ({"ggml__model": None}, r"tokenizer\.ggml\.model"),
        ({"ggml__tokens": ["a", "a"]}, "twice"),
        ({"ggml__token_type": [1, 1]}, "token_type"),
        ({"ggml__eos_token_id": 99999}, "eos_token_id"),
        ({"ggml__merges": ["zz qq"]}, "do not belong together"),
        ({"ggml__merges": ["zzqq"]}, "merges"),
        ({"ggml__bos_token_id": None, "ggml__add_bos_token": True}, "add_bos_token"),
    ],
)
def test_bad_metadata_is_named(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=named):
        build(tmp_path, byte_level_metadata(), **changes)


def test_scores_must_match_the_tokens(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="scores"):
        build(tmp_path, sentencepiece_metadata(), ggml__scores=[0.0, 1.0])
