"""GGUF files written from a description that may be wrong in any place."""

from __future__ import annotations

import copy
import struct
from dataclasses import dataclass, field
from typing import Any

from fuzz.choices import ODD, Choices

_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
HIDDEN, INNER, HEADS, HEAD_DIM, VOCAB = 32, 32, 2, 16, 12
_TOKENS = ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "\u2581a", "c", "bc", "<0x0A>", "abc"]
_BYTES = ["<unk>", "<s>", "</s>", "\u0120", "a", "b", "ab", "\u0120a", "c", "bc", "\u010a", "abc"]


@dataclass
class Pair:
    """One entry of the metadata; an array's value is (kind of its items, items)."""

    key: str
    kind: int
    value: Any


@dataclass
class Entry:
    """One line of the tensor table."""

    name: str
    dims: list[int]
    kind: int
    offset: int


@dataclass
class Document:
    """A file. `data` is the number of bytes behind the table."""

    pairs: list[Pair]
    tensors: list[Entry]
    data: int
    counts: list[int] = field(default_factory=lambda: [0, 0])  # added to the true ones
    cut: int = 0


def encode(document: Document) -> bytes:
    """The bytes, with whatever is wrong in them."""
    out = [b"GGUF", struct.pack("<I", 3)]
    for count, off in zip(
        (len(document.tensors), len(document.pairs)), document.counts, strict=True
    ):
        out.append(struct.pack("<Q", (count + off) % 2**64))
    for pair in document.pairs:
        out += [_text(pair.key), struct.pack("<I", pair.kind), _value(pair.kind, pair.value)]
    for entry in document.tensors:
        out += [_text(entry.name), struct.pack("<I", len(entry.dims) % 2**32)]
        out += [struct.pack("<Q", dim % 2**64) for dim in entry.dims]
        out.append(struct.pack("<IQ", entry.kind % 2**32, entry.offset % 2**64))
    head = b"".join(out)
    pattern = struct.pack("<8f", *(0.5, -0.25, 1.0, 0.125, -1.0, 0.75, 0.0, 0.375))
    body = head + b"\0" * (-len(head) % 32) + (pattern * (document.data // 32 + 1))[: document.data]
    return body[: len(body) - document.cut] if document.cut else body


def _text(text: object) -> bytes:
    raw = str(text).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _text(value)
    if kind == ARRAY:
        item, items = value if isinstance(value, tuple) else (U32, [])
        if not isinstance(items, list):  # its length alone
            return struct.pack("<IQ", item % 2**32, _whole(items) % 2**64)
        packed = b"".join(_value(item, one) for one in items)
        return struct.pack("<IQ", item % 2**32, len(items)) + packed
    code = _CODES.get(kind)
    if code is None:
        return b"\0" * 8
    width = struct.calcsize(f"<{code}")
    if code in "fd":
        try:
            return struct.pack(f"<{code}", value)
        except (struct.error, OverflowError):
            return b"\xff" * width
    return (_whole(value) % 2 ** (8 * width)).to_bytes(width, "little")


def _whole(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 2**64 - 1


def model(arch: str, kind: str) -> Document:
    """A model of one layer that loads, with its tokenizer ("llama" or "gpt2")."""
    pairs = [
        Pair("general.architecture", STRING, arch),
        *(
            Pair(f"{arch}.{key}", U32, value)
            for key, value in {
                "block_count": 1,
                "context_length": 64,
                "embedding_length": HIDDEN,
                "feed_forward_length": INNER,
                "attention.head_count": HEADS,
                "attention.head_count_kv": HEADS,
                "attention.key_length": HEAD_DIM,
                "rope.dimension_count": HEAD_DIM,
                "attention.sliding_window": 0,
                "rope.scaling.original_context_length": 32,
            }.items()
        ),
        Pair(f"{arch}.attention.layer_norm_rms_epsilon", F32, 1e-5),
        Pair(f"{arch}.rope.freq_base", F32, 10000.0),
        Pair(f"{arch}.rope.scaling.type", STRING, "yarn" if arch == "qwen2" else "none"),
        Pair(f"{arch}.rope.scaling.factor", F32, 2.0 if arch == "qwen2" else 1.0),
        Pair("tokenizer.ggml.model", STRING, kind),
        Pair("tokenizer.ggml.pre", STRING, "llama-bpe"),
        Pair("tokenizer.ggml.tokens", ARRAY, (STRING, _TOKENS if kind == "llama" else _BYTES)),
        Pair("tokenizer.ggml.token_type", ARRAY, (5, [2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 6, 4])),
        Pair("tokenizer.ggml.scores", ARRAY, (F32, [-float(i) for i in range(VOCAB)])),
        Pair("tokenizer.ggml.merges", ARRAY, (STRING, ["a b", "b c"])),
        Pair("tokenizer.ggml.bos_token_id", U32, 1),
        Pair("tokenizer.ggml.eos_token_id", U32, 2),
        Pair("tokenizer.ggml.unknown_token_id", U32, 0),
        Pair("tokenizer.ggml.padding_token_id", U32, 2),
        Pair("tokenizer.ggml.add_bos_token", BOOL, 1),
        Pair("tokenizer.chat_template", STRING, "{{ messages[0].content }}"),
    ]
    shapes = {
        "token_embd.weight": [HIDDEN, VOCAB],
        "output_norm.weight": [HIDDEN],
        "rope_freqs.weight": [HEAD_DIM // 2],
        **{f"blk.0.attn_{n}.weight": [HIDDEN, HIDDEN] for n in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{n}.weight": [HIDDEN, INNER] for n in ("gate", "up", "down")},
        **{f"blk.0.{n}_norm.weight": [HIDDEN] for n in ("attn", "ffn")},
    }
    if arch == "qwen2":
        del shapes["rope_freqs.weight"]
        shapes |= {f"blk.0.attn_{n}.bias": [HIDDEN] for n in "qkv"}
    tensors, at = [], 0
    for name, dims in shapes.items():
        tensors.append(Entry(name, dims, 0, at))
        size = 4
        for dim in dims:
            size *= dim
        at += -(-size // 32) * 32
    return Document(pairs, tensors, at)


BASES = (model("llama", "llama"), model("llama", "gpt2"), model("qwen2", "gpt2"))
_NUMBERS = [value for value in ODD if isinstance(value, int | float)]
_KINDS = (*range(13), 13, 77, 2**32 - 1)


def mutated(choices: Choices) -> bytes:
    """One of the models, changed in up to four places."""
    document = copy.deepcopy(choices.one_of(BASES))
    for _ in range(1 + choices.below(4)):
        match choices.below(8):
            case 0 | 1 | 2:
                _change_pair(choices.one_of(document.pairs), choices)
            case 3 | 4:
                _change_entry(choices.one_of(document.tensors), choices)
            case 5:
                entries: list[Any] = choices.one_of([document.pairs, document.tensors])
                at = choices.below(len(entries))
                entries[at:] = choices.one_of([entries[at + 1 :], [entries[at], *entries[at:]]])
                if not (document.pairs and document.tensors):
                    break
            case 6:
                document.counts[choices.below(2)] = int(choices.one_of([1, -1, 2**60, 2**64 - 1]))
            case _:
                document.cut = choices.below(len(encode(document)))
    return encode(document)


def _change_pair(pair: Pair, choices: Choices) -> None:
    match choices.below(5):
        case 0:
            pair.kind = choices.one_of(_KINDS)
        case 1 if isinstance(pair.value, tuple) and isinstance(pair.value[1], list):
            kind, items = pair.value
            at = choices.below(len(items) + 1)
            odd = choices.one_of(_NUMBERS if kind != STRING else ODD)
            pair.value = (kind, [*items[:at], odd, *items[at + choices.below(2) :]])
        case 1 | 2 if isinstance(pair.value, tuple):
            pair.value = (choices.one_of(_KINDS), choices.one_of([pair.value[1], 2**60, 3, []]))
        case 3:
            pair.kind, pair.value = ARRAY, (ARRAY, [(ARRAY, [(ARRAY, [(ARRAY, [(U32, [1])])])])])
        case 4:
            pair.key = choices.one_of(["", "general.alignment", pair.key + "\0", "\ud800"])
        case _:
            pair.value = choices.one_of(_NUMBERS if pair.kind != STRING else ODD)


def _change_entry(entry: Entry, choices: Choices) -> None:
    match choices.below(5):
        case 0:
            entry.kind = choices.one_of([*range(40), 2**32 - 1])
        case 1:
            entry.offset = choices.one_of([0, 1, 32, entry.offset + 32, 2**40, 2**63, 2**64 - 32])
        case 2:
            entry.dims = choices.one_of(
                [[], [0], [1], [2**32, 2**32], [2**63, 2], [2**21] * 3, [32] * 5, entry.dims[::-1]]
            )
        case 3:
            entry.dims = [*entry.dims]
            entry.dims[choices.below(len(entry.dims) or 1) :] = [choices.below(70)]
        case _:
            entry.name = choices.one_of(
                (
                    *("", "output.weight", "blk.1.attn_q.weight", "blk.99999999999.ffn_up.weight"),
                    *("blk.-1.attn_q.weight", "rope_freqs.weight", "rope_factors_long.weight"),
                    *("\0", "blk.0.attn_q.bias", "token_embd.weight", entry.name.upper()),
                )
            )
