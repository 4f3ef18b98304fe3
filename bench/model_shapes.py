"""Shapes of published models, as their config.json has them: to predict with, to fill at random."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ptd_engine.errors import CheckpointError, ConfigError
from ptd_engine.model import ModelConfig

_LLAMA, _QWEN = "LlamaForCausalLM", "Qwen2ForCausalLM"
_MODEL_TYPES = {_LLAMA: "llama", _QWEN: "qwen2"}


def _config(
    family: str,
    hidden: int,
    inner: int,
    layers: int,
    heads: tuple[int, int],
    head_dim: int,
    vocabulary: int,
    *,
    tied: bool,
    context: int,
    theta: float,
) -> dict[str, Any]:
    return {
        "architectures": [family],
        "model_type": _MODEL_TYPES[family],
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": head_dim,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "max_position_embeddings": context,
        "rope_theta": theta,
        "rms_norm_eps": 1e-5,
    }


_LLAMA3: dict[str, Any] = {"context": 131072, "theta": 5e5}
_QWEN25: dict[str, Any] = {"context": 32768, "theta": 1e6}

# The rope's scaling is left out: no size follows from it.
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama-3.1-8b": _config(_LLAMA, 4096, 14336, 32, (32, 8), 128, 128256, tied=False, **_LLAMA3),
    "llama-3.2-3b": _config(_LLAMA, 3072, 8192, 28, (24, 8), 128, 128256, tied=True, **_LLAMA3),
    "llama-3.2-1b": _config(_LLAMA, 2048, 8192, 16, (32, 8), 64, 128256, tied=True, **_LLAMA3),
    "qwen2.5-7b": _config(_QWEN, 3584, 18944, 28, (28, 4), 128, 152064, tied=False, **_QWEN25),
    "qwen2.5-1.5b": _config(_QWEN, 1536, 8960, 28, (12, 2), 128, 151936, tied=True, **_QWEN25),
    "qwen2.5-0.5b": _config(_QWEN, 896, 4864, 24, (14, 2), 64, 151936, tied=True, **_QWEN25),
    "smollm2-135m": _config(
        _LLAMA, 576, 1536, 30, (9, 3), 64, 49152, tied=True, context=8192, theta=1e5
    ),
}


def load_shape(name: str) -> ModelConfig:
    """The configuration of a published model, or of a config.json (or its folder).

    Raises:
        ConfigError: neither of them.
        CheckpointError: a config.json that is none, or of an unsupported model.
    """
    if name in SHAPES:
        return ModelConfig.from_hf(SHAPES[name])
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise ConfigError.for_field(
            "--model", name, f"{', '.join(SHAPES)}, or the path of a config.json"
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path.name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path.name} holds no JSON object, so no model's configuration.")
    return ModelConfig.from_hf(found)
