"""The rotary embedding of a model as its config describes it, in either of the two spellings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ptd_engine.checkpoint.fields import flag, integer, number
from ptd_engine.errors import CheckpointError

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")
# What these families' configuration classes in transformers take where a config has none.
_DEFAULT_ROPE_THETA = 10000.0
_OF_NO_TYPE = ("rope_theta", "partial_rotary_factor")
# Parameters of the scaled rope types; of some, 0 means that the type's own default is taken.
_ROPE_ABOVE_ZERO = ("factor", "low_freq_factor", "high_freq_factor", "attention_factor")
_ROPE_FROM_ZERO = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding parameters.

    Attributes:
        rope_type: one of ROPE_TYPES.
        theta: base of the geometric series of wavelengths.
        params: the parameters of the type under their Hugging Face names (factor, ...).
        original_max: context length of pre-training (for "dynamic": max_position_embeddings).
    """

    rope_type: str
    theta: float
    params: Mapping[str, Any] = field(default_factory=dict)
    original_max: int = 0

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> RopeConfig:
        """Read `rope_parameters` (transformers 5) or `rope_scaling` and `rope_theta`.

        Raises:
            CheckpointError: an unknown rope type, a factor without a type, a partial rotary factor,
                a parameter of a wrong type or out of range, or parameters that are not one flat
                dict.
        """
        params: dict[str, Any] = {}
        for key in ("rope_parameters", "rope_scaling"):  # the later one wins, as in transformers
            named = _one_dict(config, key)
            if named.get("rope_type") is not None:
                # Another type: of the former dict only what no type owns stays.
                params = {name: params[name] for name in _OF_NO_TYPE if name in params}
            params.update(named)
        rope_type = params.pop("rope_type", None) or "default"
        if rope_type not in ROPE_TYPES:
            raise CheckpointError.for_field(
                "rope_type",
                rope_type,
                f"one of {', '.join(ROPE_TYPES)}",
                "This model is not supported.",
            )
        theta = number(_first("rope_theta", params, config), "rope_theta", _DEFAULT_ROPE_THETA)
        partial = _first("partial_rotary_factor", params, config)
        if number(partial, "partial_rotary_factor", 1.0, zero=True) != 1.0:
            raise CheckpointError.for_field(
                "partial_rotary_factor",
                partial["partial_rotary_factor"],
                "1.0",
                "Partial rotary embeddings are not supported.",
            )
        for name in _OF_NO_TYPE:
            params.pop(name, None)
        _check_scaling(params)
        longest = integer(config, "max_position_embeddings")
        original = _first("original_max_position_embeddings", config, params)
        trained = integer(original, "original_max_position_embeddings") if original else longest
        if rope_type in ("yarn", "llama3"):
            params["original_max_position_embeddings"] = trained
        return cls(rope_type, theta, params, trained)


def _one_dict(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """config[key] with its type under "rope_type", where it names one; null and absence give {}."""
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping) or any(isinstance(v, Mapping) for v in value.values()):
        raise CheckpointError.for_field(key, value, "one flat dict for all layers")
    named = {name: v for name, v in value.items() if name not in ("type", "rope_type")}
    for name in _OF_NO_TYPE:
        if named.get(name, 0) is None:  # null shall not hide a value at another place
            del named[name]
    if rope_type := value.get("rope_type") or value.get("type"):
        return {**named, "rope_type": rope_type}
    if named.get("factor") is not None:
        raise CheckpointError.for_field(
            key,
            dict(value),
            f"a dict with rope_type, one of {', '.join(ROPE_TYPES)}, beside its factor",
            "Without a type the factor would be ignored: correct config.json.",
        )
    return named


def _first(key: str, *sources: Mapping[str, Any]) -> dict[str, Any]:
    """{key: the value of the first source that has one}, or {}."""
    for source in sources:
        if source.get(key) is not None:
            return {key: source[key]}
    return {}


def _check_scaling(params: Mapping[str, Any]) -> None:
    """Refuse rope parameters that no rotation follows from; absent ones are the rope type's."""
    for names, zero in ((_ROPE_ABOVE_ZERO, False), (_ROPE_FROM_ZERO, True)):
        for name in names:
            if params.get(name) is not None:
                number(params, name, zero=zero)
    flag(params, "truncate")
    low, high = params.get("low_freq_factor"), params.get("high_freq_factor")
    if low is not None and high is not None and high <= low:
        raise CheckpointError.for_field(
            "high_freq_factor", high, f"a number above low_freq_factor={low}"
        )
