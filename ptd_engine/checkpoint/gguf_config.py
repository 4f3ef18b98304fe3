"""GGUF metadata -> a Hugging Face style config dict (llama, mistral, qwen2, qwen3).

Everything that changes the arithmetic is either mapped or refused by name; nothing is dropped in
silence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ptd_engine.checkpoint.gguf_header import GGUFHeader
from ptd_engine.errors import CheckpointError

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

# Keys of the llama family whose value changes the result and that this engine does not implement;
# the value on the right is the neutral one.
_NEUTRAL: dict[str, object] = {
    "expert_count": 0,
    "logit_scale": 1.0,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "attention.clamp_kqv": 0.0,
    "attention.causal": True,
    "attention.max_alibi_bias": 0.0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}


def hf_config(header: GGUFHeader, rope_factors: Sequence[float] | None) -> dict[str, Any]:
    """Map the metadata of `header` to a config dict.

    Args:
        header: of a llama, qwen2 or qwen3 file (a mistral model is "llama" in GGUF; one with a
            sliding window comes back as model_type "mistral").
        rope_factors: content of `rope_freqs.weight` [head_dim / 2], if the file has it.

    Raises:
        CheckpointError: an unsupported architecture, a missing key, or a feature that is not
            implemented.
    """
    arch = architecture(header)
    _refuse_unimplemented(header, arch)
    hidden = _positive(header, f"{arch}.embedding_length")
    heads = _positive(header, f"{arch}.attention.head_count")
    head_dim = header.integer(f"{arch}.attention.key_length", hidden // heads)
    if head_dim < 2 or head_dim % 2:
        hint = f"The metadata of {header.path} is damaged."
        raise CheckpointError.for_field("head dimension", head_dim, "an even integer >= 2", hint)
    for key in ("attention.value_length", "rope.dimension_count"):
        if header.integer(f"{arch}.{key}", head_dim) != head_dim:
            raise CheckpointError.for_field(
                f"{arch}.{key}",
                header.metadata[f"{arch}.{key}"],
                f"the head dimension {head_dim}",
                "Partial rotary embeddings and value heads of another size are not supported.",
            )
    kv_key = f"{arch}.attention.head_count_kv"
    kv_heads = _positive(header, kv_key) if kv_key in header.metadata else heads
    context = _positive(header, f"{arch}.context_length")
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[arch]],
        "model_type": arch,
        "vocab_size": _vocab_size(header),
        "hidden_size": hidden,
        "intermediate_size": _positive(header, f"{arch}.feed_forward_length"),
        "num_hidden_layers": _positive(header, f"{arch}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": header.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": context,
        "rope_theta": header.number(f"{arch}.rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(header, arch, head_dim, rope_factors),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "hidden_act": "silu",
    }
    config["attention_bias"] = _llama_biases(header, arch)
    _sliding_window(header, arch, context, config)
    for name, key in (("bos_token_id", "bos_token_id"), ("eos_token_id", "eos_token_id")):
        if f"tokenizer.ggml.{key}" in header.metadata:
            config[name] = header.integer(f"tokenizer.ggml.{key}")
    return config


def architecture(header: GGUFHeader) -> str:
    """The value of general.architecture; `CheckpointError` if it is not one of `ARCHITECTURES`."""
    arch = header.string("general.architecture")
    if arch not in ARCHITECTURES:
        raise CheckpointError.for_field(
            "general.architecture",
            arch,
            ", ".join(ARCHITECTURES),
            f"{header.path} holds a model of another family.",
        )
    return arch


def _positive(header: GGUFHeader, key: str) -> int:
    value = header.integer(key)
    if value < 1:
        raise CheckpointError.for_field(key, value, "an integer >= 1", f"{header.path} is damaged.")
    return value


def _refuse_unimplemented(header: GGUFHeader, arch: str) -> None:
    if (kind := header.string("general.type", "model")) != "model":
        hint = f"{header.path} is not a whole model."
        if kind == "adapter":
            hint += " Merge the adapter into its base model first, and convert the result."
        raise CheckpointError.for_field("general.type", kind, "'model'", hint)
    if header.integer("split.count", 1) > 1:
        raise CheckpointError.for_field(
            "split.count",
            header.metadata["split.count"],
            "a single GGUF file",
            "Join the parts first, for example with `llama-gguf-split --merge`.",
        )
    for key, neutral in _NEUTRAL.items():
        value = header.metadata.get(f"{arch}.{key}", neutral)
        if value != neutral:
            hint = "This variant of the model is not supported."
            raise CheckpointError.for_field(f"{arch}.{key}", value, f"{neutral} or absent", hint)


def _vocab_size(header: GGUFHeader) -> int:
    """Rows of the embedding; they may exceed the tokens of the tokenizer (padding), never fall
    short.
    """
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(
            f"{header.path} has no tensor token_embd.weight: not a complete model."
        )
    rows = embedding.shape[0]
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > rows:
        raise CheckpointError.for_field(
            "token_embd.weight rows",
            rows,
            f"at least the {len(tokens)} tokens of the tokenizer",
            "Tokens were added without resizing the embedding.",
        )
    return rows


def _llama_biases(header: GGUFHeader, arch: str) -> bool:
    """Hugging Face's `attention_bias`: for llama it means q, k, v and o; qwen2 implies q, k, v
    itself.
    """
    found = {p for p in ("q", "k", "v", "output") if f"blk.0.attn_{p}.bias" in header.tensors}
    if arch != "llama" or not found:
        return "output" in found
    if len(found) < 4:
        raise CheckpointError.for_field(
            "attention biases",
            sorted(found),
            "none, or all of q, k, v and output",
            "A llama model with some of them is not supported.",
        )
    return True


def _sliding_window(header: GGUFHeader, arch: str, context: int, config: dict[str, Any]) -> None:
    window = header.integer(f"{arch}.attention.sliding_window", 0)
    if window <= 0 or window >= context:
        return
    if arch != "llama":
        raise CheckpointError.for_field(
            f"{arch}.attention.sliding_window",
            window,
            f"absent or at least the context length {context}",
            "Sliding-window layers are not described well enough in GGUF to be followed.",
        )
    config["model_type"] = "mistral"
    config["architectures"] = ["MistralForCausalLM"]
    config["sliding_window"] = window


def _rope_scaling(
    header: GGUFHeader, arch: str, head_dim: int, factors: Sequence[float] | None
) -> dict[str, Any] | None:
    prefix = f"{arch}.rope.scaling"
    kind = header.string(f"{prefix}.type", "none")
    if "rope_factors_long.weight" in header.tensors:
        raise CheckpointError(
            f"{header.path}: longrope scaling (rope_factors_long) is not supported."
        )
    if f"{arch}.rope.scale_linear" in header.metadata and f"{prefix}.factor" not in header.metadata:
        kind, factor = "linear", header.number(f"{arch}.rope.scale_linear")
    else:
        factor = header.number(f"{prefix}.factor", 1.0)
    if factors is not None and any(value != 1.0 for value in factors):
        if kind != "none" and factor != 1.0:
            raise CheckpointError.for_field(
                f"{prefix}.type",
                kind,
                "'none' beside rope_freqs.weight",
                "Convert the model again.",
            )
        return _llama3_scaling(header, arch, head_dim, factors)
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        hint = "The scaling of this model is not supported."
        raise CheckpointError.for_field(f"{prefix}.type", kind, "none, linear or yarn", hint)
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": header.integer(f"{prefix}.original_context_length"),
    }
    for key in ("beta_fast", "beta_slow"):
        if f"{prefix}.yarn_{key}" in header.metadata:
            scaling[key] = header.number(f"{prefix}.yarn_{key}")
    if header.number(f"{prefix}.yarn_ext_factor", 1.0) not in (1.0, -1.0):
        raise CheckpointError(f"{header.path}: {prefix}.yarn_ext_factor is not supported.")
    return scaling


def _llama3_scaling(
    header: GGUFHeader, arch: str, head_dim: int, factors: Sequence[float]
) -> dict[str, Any]:
    """Recover the llama3 parameters from the frequency divisors that they produced.

    GGUF stores only the result. The released models all use low 1, high 4 over 8192 positions, so
    the one unknown is the factor, which is the largest divisor; anything that these do not
    reproduce is refused.
    """
    theta = header.number(f"{arch}.rope.freq_base", 10000.0)
    factor = float(str(np.float32(max(factors))))
    declared = header.integer(f"{arch}.rope.scaling.original_context_length", 8192)
    usable = theta > 0 and 0 < factor < math.inf and len(factors) == head_dim // 2
    for original in dict.fromkeys((8192, declared)) if usable else ():
        wanted = llama3_divisors(theta, head_dim, factor, 1.0, 4.0, original)
        if all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(wanted, factors, strict=True)):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": original,
            }
    raise CheckpointError.for_field(
        "rope_freqs.weight",
        [round(value, 4) for value in factors],
        "the divisors of llama3 scaling with low 1, high 4 over 8192 positions",
        "Other frequency factors are not supported; use the safetensors release of this model.",
    )


def llama3_divisors(
    theta: float, head_dim: int, factor: float, low: float, high: float, original: int
) -> list[float]:
    """Divisor of each rotary frequency under llama3 scaling (Llama 3.1 model card; head_dim / 2
    values).
    """
    result = []
    for i in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * i / head_dim)
        if wavelength < original / high:
            result.append(1.0)
        elif wavelength > original / low:
            result.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            result.append(1 / ((1 - smooth) / factor + smooth))
    return result
