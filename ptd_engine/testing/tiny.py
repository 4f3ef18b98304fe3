"""Tiny random models of every supported family, written to disk as a user's model directory would
be.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

_SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

# One entry for each kind of model that must load: what it changes in the shape above.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama2": {"model_type": "llama", "num_key_value_heads": 4},
    "llama3": {"model_type": "llama", "rope_parameters": {"rope_theta": 500000.0}},
    "llama31": {"model_type": "llama", "rope_parameters": _LLAMA3_ROPE},
    "llama32": {
        "model_type": "llama",
        "rope_parameters": _LLAMA3_ROPE,
        "tie_word_embeddings": True,
        "head_dim": 32,
    },
    "llama_bias": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "codellama": {
        "model_type": "llama",
        "num_key_value_heads": 4,
        "rope_parameters": {"rope_theta": 1000000.0},
    },
    "mistral": {"model_type": "mistral", "sliding_window": None, "head_dim": 16},
    "qwen2": {
        "model_type": "qwen2",
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "hidden_size": 56,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_theta": 1000000.0},
    },
    "qwen25": {"model_type": "qwen2", "rms_norm_eps": 1e-6},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "rms_norm_eps": 1e-6},
}

# Rotary parameters of every supported type, on a model trained to 32 positions.
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "llama3": {**_LLAMA3_ROPE, "original_max_position_embeddings": 32},
}


def build(family: str, seed: int = 0, **changes: Any) -> Any:
    """Return a transformers model of `family` (a key of FAMILIES) with random weights, fp32, eager
    attention.

    Biases and norm weights are random too, so that dropping one changes the output.

    Args:
        family: key of FAMILIES.
        seed: of the weights; the global random state is left as it was.
        changes: config values that replace the family's.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {**_SHAPE, **FAMILIES[family], **changes}
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    config._attn_implementation = "eager"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        auto: Any = AutoModelForCausalLM
        model = auto.from_config(config, dtype=torch.float32)
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            is_matrix = parameter.dim() == 2
            scale = 1.0 if "embed_tokens" in name else 1.6 * parameter.shape[-1] ** -0.5
            centre = 1.0 if "norm" in name else 0.0
            parameter.data.copy_(centre + noise * (scale if is_matrix else 0.3))
    return model.eval().requires_grad_(False)


def save(model: Any, directory: Path, **options: Any) -> Path:
    """Write `model` (config.json and safetensors) to `directory`; `options` go to
    save_pretrained.
    """
    model.save_pretrained(directory, **options)
    return directory
