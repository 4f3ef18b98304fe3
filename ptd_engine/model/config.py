"""What a model is, read from a Hugging Face config: strict about all that can change a logit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ptd_engine.checkpoint.fields import flag, integer, number, strings
from ptd_engine.errors import CheckpointError, ConfigError
from ptd_engine.model.rope_config import RopeConfig

Architecture = Literal["llama", "mistral", "qwen2", "qwen3"]

_ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_MODEL_TYPES: dict[str, Architecture] = {name: name for name in _ARCHITECTURES.values()}
# The values these families' configuration classes in transformers take for keys a config leaves
# out.
_DEFAULT_KV_HEADS: dict[str, int] = {"mistral": 8, "qwen2": 32, "qwen3": 32}
_DEFAULT_WINDOW = 4096
_DEFAULT_MAX_WINDOW_LAYERS = 28
# Longer than any model's context; below it, sizes of caches and tables stay far from overflow.
MAX_CONTEXT = 2**24
# More than any model has; the names of all tensors are listed before they are looked for.
MAX_LAYERS = 4096
_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)


@dataclass(frozen=True)
class ModelConfig:
    """Shape and arithmetic of a decoder.

    Attributes:
        sliding_window: tokens a layer may look back, where a window is truly active in some layer,
            else None.
        qkv_bias, o_bias, mlp_bias: which projections carry a bias.
        qk_norm: queries and keys are normalised per head before the rotation.
        eos_token_ids: of the config; `load_model` adds those of generation_config, `LLM` those of
            tokenizer.
        Others: as their Hugging Face namesakes.
    """

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_window: int | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Read a Hugging Face config dict (config.json, or one derived from GGUF metadata).

        Raises:
            CheckpointError: unsupported architecture, activation or rope type; missing keys; values
                of a wrong type or out of range; sizes that contradict each other.
        """
        family = _architecture(config)
        _check_layer_types(config)
        missing = [key for key in _REQUIRED if config.get(key) is None]
        if missing:
            raise CheckpointError(
                f"config.json lacks {', '.join(missing)}: the file is damaged or not a {family} "
                "config."
            )
        activation = config.get("hidden_act", "silu")
        if activation not in ("silu", "swish"):
            raise CheckpointError.for_field("hidden_act", activation, "'silu'")
        heads = integer(config, "num_attention_heads")
        hidden = integer(config, "hidden_size")
        named = {
            "num_key_value_heads": config.get("num_key_value_heads", _DEFAULT_KV_HEADS.get(family))
            or heads,
            "head_dim": config.get("head_dim") or (128 if family == "qwen3" else hidden // heads),
        }
        kv_heads, head_dim = integer(named, "num_key_value_heads"), integer(named, "head_dim")
        if heads % kv_heads:
            raise CheckpointError.for_field(
                "num_key_value_heads", kv_heads, f"a divisor of num_attention_heads={heads}"
            )
        if head_dim % 2:
            raise CheckpointError.for_field("head_dim", head_dim, "an even number")
        layers = integer(config, "num_hidden_layers")
        if layers > MAX_LAYERS:
            raise CheckpointError.for_field(
                "num_hidden_layers", layers, f"an integer of 1 .. {MAX_LAYERS}"
            )
        attention_bias = family in ("llama", "qwen3") and flag(config, "attention_bias")
        bos = eos_ids_of(config.get("bos_token_id"), "bos_token_id")
        return cls(
            architecture=family,
            vocab_size=integer(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=integer(config, "intermediate_size"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=number(config, "rms_norm_eps", 1e-6, zero=True),
            rope=RopeConfig.from_hf(config),
            max_position_embeddings=integer(config, "max_position_embeddings"),
            tie_word_embeddings=flag(config, "tie_word_embeddings"),
            qkv_bias=attention_bias or family == "qwen2",
            o_bias=attention_bias,
            mlp_bias=family == "llama" and flag(config, "mlp_bias"),
            qk_norm=family == "qwen3",
            sliding_window=_active_window(config, family),
            bos_token_id=bos[0] if bos else None,
            eos_token_ids=eos_ids_of(config.get("eos_token_id"), "eos_token_id"),
        )

    def with_eos(self, value: object, field: str) -> ModelConfig:
        """Add end-of-sequence ids of another source (an id, a list or None); `field` names it.

        Raises:
            CheckpointError: not token ids.
        """
        ids = {*self.eos_token_ids, *eos_ids_of(value, field)}
        return replace(self, eos_token_ids=tuple(sorted(ids)))

    def check_context(self, max_seq_len: int) -> None:
        """Refuse a context in which a sliding window would come into force: it is not implemented.

        Raises:
            ConfigError: max_seq_len is not in 1 .. MAX_CONTEXT, or above an active sliding window.
        """
        if not 1 <= max_seq_len <= MAX_CONTEXT:
            raise ConfigError.for_field(
                "max_seq_len",
                max_seq_len,
                f"an integer of 1 .. {MAX_CONTEXT}",
                f"The model's own context is {self.max_position_embeddings}.",
            )
        if self.sliding_window is not None and max_seq_len > self.sliding_window:
            raise ConfigError.for_field(
                "max_seq_len",
                max_seq_len,
                f"at most {self.sliding_window}, the sliding window of this {self.architecture} "
                "model",
                "Sliding-window attention is not supported: pass "
                f"max_seq_len={self.sliding_window} or less, "
                "where it equals full attention.",
            )


def _architecture(config: Mapping[str, Any]) -> Architecture:
    named = strings(config, "architectures")
    for name in named:
        if name in _ARCHITECTURES:
            return _ARCHITECTURES[name]
    model_type = config.get("model_type")
    if not named and isinstance(model_type, str) and model_type in _MODEL_TYPES:
        return _MODEL_TYPES[model_type]
    raise CheckpointError.for_field(
        "architectures" if named else "model_type",
        named or model_type,
        f"one of {', '.join(_ARCHITECTURES)}",
        "This model is not supported.",
    )


def _check_layer_types(config: Mapping[str, Any]) -> None:
    """Refuse kinds of attention that these families do not have; windows are `_active_window`'s."""
    for kind in strings(config, "layer_types"):
        if kind not in ("full_attention", "sliding_attention"):
            raise CheckpointError.for_field(
                "layer_types",
                kind,
                "full_attention or sliding_attention for each layer",
                "This model is not supported.",
            )


def _active_window(config: Mapping[str, Any], family: Architecture) -> int | None:
    """Return the window if some layer truly slides; each family has its own switch."""
    if family == "llama":
        return None
    window = config.get("sliding_window", _DEFAULT_WINDOW)
    if window is None:
        return None
    if family != "mistral":
        if not flag(config, "use_sliding_window"):
            return None
        kinds = strings(config, "layer_types")
        first = integer(
            {"max_window_layers": _DEFAULT_MAX_WINDOW_LAYERS, **config}, "max_window_layers", 0
        )
        layers = integer(config, "num_hidden_layers")
        slides = "sliding_attention" in kinds if kinds else first < layers
        if not slides:
            return None
    return integer({"sliding_window": window}, "sliding_window")


def eos_ids_of(value: object, field: str) -> tuple[int, ...]:
    """Token ids as a config writes them: one, a list of them, or null for none.

    Args:
        value: what the config holds.
        field: its name, for the error ("eos_token_id in generation_config.json").

    Raises:
        CheckpointError: anything but integers of 0 .. 2^31 - 1 (booleans, strings, nested lists).
    """
    if value is None:
        return ()
    ids: list[int] = []
    for token in value if isinstance(value, list | tuple) else [value]:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
            raise CheckpointError.for_field(
                field,
                value,
                "a token id of 0 .. 2^31 - 1, a list of them, or null",
                "Correct the model's configuration.",
            )
        ids.append(token)
    return tuple(ids)
