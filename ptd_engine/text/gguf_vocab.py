"""The tokenizer part of GGUF metadata, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ptd_engine.checkpoint.gguf_header import GGUFHeader
from ptd_engine.errors import CheckpointError
from ptd_engine.text.eos import eos_union

_PREFIX = "tokenizer.ggml"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
MODELS = ("gpt2", "llama")
_MOST_CHARACTERS = 4096  # of a token; merges are looked for at every place inside it

# Control tokens that end a turn or a text in the supported families. Files declare one id as eos;
# chat models end a turn with another one, and only its text tells (their generation_config.json is
# not in the file).
_END_TEXTS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>")


@dataclass(frozen=True)
class GGUFVocab:
    """Tokens, their kinds, and the special ids.

    Attributes:
        model: "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE).
        tokens: token strings by id, all different.
        types: kind of each token (ggml numbering; see the constants of this module).
        special_ids: "bos", "eos", "unk", "pad" -> id, where declared.
        eos_token_ids: every id that ends a generation; the declared eos first.
    """

    model: str
    tokens: list[str]
    types: list[int]
    special_ids: Mapping[str, int]
    eos_token_ids: tuple[int, ...]

    @property
    def used(self) -> int:
        """One more than the highest id of a real token: converters fill the list up to the rows of
        the embedding with tokens of the kind "unused" ([PAD151665]).
        """
        return next((i + 1 for i in reversed(range(len(self.types))) if self.types[i] != UNUSED), 0)

    def special_token(self, name: str) -> str | None:
        """The text of a special token, None if it is not declared."""
        token = self.special_ids.get(name)
        return None if token is None else self.tokens[token]


def read_vocab(header: GGUFHeader) -> GGUFVocab:
    """Read and check the vocabulary.

    Raises:
        CheckpointError: no tokenizer, an unsupported kind, arrays of different lengths, repeated
            tokens, special ids outside the vocabulary.
    """
    model = header.string(f"{_PREFIX}.model")
    if model not in MODELS:
        hint = "Tokenizers of this kind are not supported."
        raise CheckpointError.for_field(f"{_PREFIX}.model", model, ", ".join(MODELS), hint)
    tokens = header.strings(f"{_PREFIX}.tokens")
    if len(set(tokens)) != len(tokens):
        raise CheckpointError(f"{header.path}: {_PREFIX}.tokens holds a token twice; damaged file?")
    if longest := next((token for token in tokens if len(token) > _MOST_CHARACTERS), None):
        raise CheckpointError.for_field(
            f"{_PREFIX}.tokens entry", longest, f"a token of at most {_MOST_CHARACTERS} characters"
        )
    types = [NORMAL] * len(tokens)
    if f"{_PREFIX}.token_type" in header.metadata:
        kinds = header.numbers(f"{_PREFIX}.token_type")
        types = [int(kind) if math.isfinite(kind) else UNUSED for kind in kinds]
        if len(types) != len(tokens):
            raise CheckpointError.for_field(
                f"length of {_PREFIX}.token_type", len(types), f"{len(tokens)}, one per token"
            )
    special = _special_ids(header, model, len(tokens))
    for name in ("bos", "eos", "unk"):
        if name in special and types[special[name]] == NORMAL:
            types[special[name]] = CONTROL
    by_text = {tokens[i]: i for i, kind in enumerate(types) if kind == CONTROL}
    ends = eos_union(
        special.get("eos"),
        _optional_id(header, "eot_token_id", len(tokens)),
        _optional_id(header, "eom_token_id", len(tokens)),
        [by_text[text] for text in _END_TEXTS if text in by_text],
    )
    return GGUFVocab(model, tokens, types, special, ends)


def _special_ids(header: GGUFHeader, model: str, count: int) -> dict[str, int]:
    found = {"bos": 1, "eos": 2, "unk": 0} if model == "llama" and count > 2 else {}
    keys = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    for name, key in keys.items():
        token = _optional_id(header, f"{key}_token_id", count)
        if token is not None:
            found[name] = token
    return found


def _optional_id(header: GGUFHeader, key: str, count: int) -> int | None:
    key = f"{_PREFIX}.{key}"
    if key not in header.metadata:
        return None
    token = header.integer(key)
    if not 0 <= token < count:
        raise CheckpointError.for_field(key, token, f"an id below the vocabulary size {count}")
    return token
