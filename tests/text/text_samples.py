"""A seeded stream of varied strings, and synthetic GGUF tokenizers to run them through."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
from reference_bpe import BYTES, train_merges

CORPUS = (
    "The quick brown fox jumps over the lazy dog. It's the dog's day, isn't it? We'll see: "
    "they've 12 dogs and 345 cats. def main(args):\n    return [x ** 2 for x in range(10)]\n\n"
    "\tfor (int i = 0; i < n; ++i) { total += values[i]; }\n世界 你好 世界 привет мир ñandú café "
    "naïve über 😀😀 👍🏽       return    None\n        yield   value\r\n the and ing tion er on "
    "the and HTTPServer "
) * 3
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<tool_call>", "<tool call>", "    <pad run>"]

_FRAGMENTS = [
    lambda r: r.choice(
        ["the", "Hello", "dog's", "they'VE", "naïve", "Straße", "ДОМ", "iPhone", "I'M"]
    ),
    lambda r: str(r.randrange(10 ** r.randint(1, 9))),
    lambda r: r.choice(["3.14", "1,000", "½", "²³", "Ⅻ", "٣٤", "0x1F", "v2.0-rc1", "৪২"]),
    lambda r: r.choice(
        ["for i in range(10):", "x+=1;", "a[i]->b", "/* c */", "#!$%", "'''", "//\n"]
    ),
    lambda r: r.choice(["😀", "👍🏽", "👩\u200d💻", "🇩🇪", "\u2764\ufe0f", "🤷"]),
    lambda r: r.choice(
        ["世界", "你好、世界。", "こんにちは", "안녕하세요", "สวัสดี", "नमस्ते", "עברית"]
    ),
    lambda r: " " * r.randint(1, 9),
    lambda r: r.choice(
        ["\n", "\n\n", "\r\n", "\t", " \n", "\n \n", "\t\t  ", "\u00a0", "\u3000", "\u2003"]
    ),
    lambda r: r.choice([" ", " ", ". ", ", ", "!", "...", " - ", "—", "“”"]),
    lambda r: "".join(
        chr(r.choice([r.randrange(32, 0x250), r.randrange(0x4E00, 0x9000)])) for _ in range(3)
    ),
    lambda r: chr(r.choice([r.randrange(0xD800), r.randrange(0xE000, 0x110000)])),
    lambda r: r.choice(["e\u0301", "A\u030a", "\u0000", "\u0007", "\ufffd", "\u200b", "\ufeff"]),
]


def varied_strings(count: int, specials: Sequence[str], seed: int = 1) -> list[str]:
    """Words, digits, code, emoji, CJK, whitespace runs, control characters, special tokens."""
    rng = random.Random(seed)
    out = ["", " ", "a", "\n", "  a  ", "don't", "123456", *specials]
    while len(out) < count:
        parts = []
        for _ in range(rng.randint(1, 14)):
            if rng.random() < 0.06:
                parts.append(rng.choice(list(specials)))
            else:
                parts.append(rng.choice(_FRAGMENTS)(rng))
            if rng.random() < 0.4:
                parts.append(" ")
        out.append("".join(parts))
    return out[:count]


def write_metadata(path: Path, metadata: dict[str, Any]) -> Path:
    """A GGUF file of metadata alone (that is all a tokenizer needs)."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_level_metadata(pre: str = "smollm", merge_count: int = 260) -> dict[str, Any]:
    """A small byte-level BPE: specials, 256 bytes, trained merges, user-defined, one unused."""
    merges = train_merges(CORPUS, merge_count)
    tokens = [*SPECIALS, *BYTES.values(), *dict.fromkeys(m.replace(" ", "") for m in merges)]
    tokens.append("Hello")  # no merge leads to it: only a rule that looks at whole pieces finds it
    types = [3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, *USER_DEFINED, "[PAD7]"],
        "tokenizer.ggml.token_type": [*types, *[4] * len(USER_DEFINED), 5],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def sentencepiece_metadata() -> dict[str, Any]:
    """A small SentencePiece BPE with byte fallback and llama's first tokens."""
    specials = ["<unk>", "<s>", "</s>"]
    tokens = [*specials, *(f"<0x{value:02X}>" for value in range(256))]
    types = [2, 3, 3, *[6] * 256]
    scores = [0.0] * len(tokens)
    chars = list(dict.fromkeys(c for c in CORPUS.replace(" ", "\u2581") if ord(c) < 0x3000))
    joined: list[str] = []
    for word in ["the", "dog", "hello", "world", "return", "quick", "and", "ing"]:
        joined += [word[:n] for n in range(2, len(word) + 1)]
        joined += ["\u2581" + word[:n] for n in range(1, len(word) + 1)]
    joined += ["\u2581" * n for n in (2, 3, 4, 8)]
    joined = [t for t in dict.fromkeys(joined) if t not in chars]
    random.Random(4).shuffle(joined)
    for rank, token in enumerate([*joined, *(c for c in chars if c not in "\n\r\t")]):
        tokens.append(token)
        types.append(1)
        scores.append(-float(rank))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*tokens, "<|im_end|>", "<tool>"],
        "tokenizer.ggml.token_type": [*types, 3, 4],
        "tokenizer.ggml.scores": [*scores, 0.0, 0.0],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
