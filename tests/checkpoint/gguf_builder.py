"""Small GGUF files from seeded tensors, written by `gguf.GGUFWriter`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCAB = 64, 96, 2, 4, 2, 40


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add one metadata value with the GGUF type that converters use for its Python type."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[NDArray[Any], gguf.GGMLQuantizationType | None]],
    arch: str = "llama",
) -> Path:
    """Write a file; a tensor is (array, None) or (raw bytes array, its quantised type)."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in metadata.items():
        add_value(writer, key, value)
    for name, (array, raw_type) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=raw_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def model_metadata(arch: str = "llama", head_dim: int = 16) -> dict[str, Any]:
    """The metadata of the toy model."""
    return {
        f"{arch}.block_count": LAYERS,
        f"{arch}.context_length": 512,
        f"{arch}.embedding_length": HIDDEN,
        f"{arch}.feed_forward_length": INNER,
        f"{arch}.attention.head_count": HEADS,
        f"{arch}.attention.head_count_kv": KV_HEADS,
        f"{arch}.attention.key_length": head_dim,
        f"{arch}.attention.value_length": head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 500000.0,
        f"{arch}.rope.dimension_count": head_dim,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def model_tensors(arch: str = "llama", head_dim: int = 16) -> dict[str, NDArray[np.float32]]:
    """Seeded float32 tensors in *GGUF* names, rows of q and k as the file stores them."""
    rng = np.random.default_rng(5)

    def normal(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape, dtype=np.float32)

    q, kv = HEADS * head_dim, KV_HEADS * head_dim
    tensors = {"token_embd.weight": normal(VOCAB, HIDDEN), "output_norm.weight": normal(HIDDEN)}
    for layer in range(LAYERS):
        p = f"blk.{layer}"
        tensors |= {
            f"{p}.attn_norm.weight": normal(HIDDEN),
            f"{p}.attn_q.weight": normal(q, HIDDEN),
            f"{p}.attn_k.weight": normal(kv, HIDDEN),
            f"{p}.attn_v.weight": normal(kv, HIDDEN),
            f"{p}.attn_output.weight": normal(HIDDEN, q),
            f"{p}.ffn_norm.weight": normal(HIDDEN),
            f"{p}.ffn_gate.weight": normal(INNER, HIDDEN),
            f"{p}.ffn_up.weight": normal(INNER, HIDDEN),
            f"{p}.ffn_down.weight": normal(HIDDEN, INNER),
        }
        if arch == "qwen2":
            tensors |= {f"{p}.attn_{n}.bias": normal(q if n == "q" else kv) for n in "qkv"}
        if arch == "qwen3":
            tensors |= {f"{p}.attn_{n}_norm.weight": normal(head_dim) for n in "qk"}
    return tensors


def write_model(
    path: Path,
    arch: str = "llama",
    head_dim: int = 16,
    extra: Mapping[str, Any] | None = None,
    extra_tensors: Mapping[str, NDArray[Any]] | None = None,
) -> Path:
    """Write the toy model in float32, with metadata and tensors added or replaced."""
    tensors = {**model_tensors(arch, head_dim), **(extra_tensors or {})}
    metadata = {**model_metadata(arch, head_dim), **(extra or {})}
    return write_gguf(path, metadata, {n: (t, None) for n, t in tensors.items()}, arch)
