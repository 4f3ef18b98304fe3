"""Directories that look like a model and cannot be loaded as they are: adapters, quantised weights,
weights in another container. Each error says what to do instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ptd_engine.checkpoint.json_file import read_json
from ptd_engine.errors import CheckpointError

_ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
# transformers; compressed-tensors before it used the first; MLX.
_QUANTISATION_KEYS = ("quantization_config", "compression_config", "quantization")
# What each quantiser stores instead of, or beside, a plain weight: GPTQ and AWQ; MLX;
# compressed-tensors; FP8 in two spellings; bitsandbytes in 8 and in 4 bits.
_QUANTISED_TENSORS = (
    *(".qweight", ".qzeros", ".scales"),
    *(".weight_packed", ".weight_scale", ".weight_scale_inv"),
    *(".SCB", ".absmax", ".quant_map"),
)
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_OTHER_FRAMEWORKS = (".h5", ".msgpack", ".onnx")
_TRAINING_STATE = ("training_args", "optimizer", "scheduler", "rng_state", "scaler")


def refuse_adapter(path: Path) -> None:
    """Refuse a directory with adapter_config.json, also beside a whole model.

    The model's weights alone would answer without the adapter.

    Raises:
        CheckpointError: there is one; the base model is named where the file names it.
    """
    if (path / _ADAPTER_CONFIG).exists():
        raise _adapter(path, _ADAPTER_CONFIG)


def refuse_quantised(path: Path, config: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse quantised safetensors, whatever the method.

    Args:
        path: the model directory, for the message.
        config: config.json.
        names: of the tensors; they tell where the config is silent.

    Raises:
        CheckpointError: the config says quantised, or a tensor is a quantiser's.
    """
    for key in _QUANTISATION_KEYS:
        value = config.get(key)
        if value is not None and value != {}:
            method = value.get("quant_method") if isinstance(value, Mapping) else value
            named = "" if method is None else f" of method {method!r}"
            raise CheckpointError(
                f"{path / 'config.json'} has a {key}{named}: {_DEQUANTISE} If the weights are "
                f"dequantised already, remove {key} from config.json."
            )
    if found := next((name for name in names if name.endswith(_QUANTISED_TENSORS)), None):
        raise CheckpointError(f"{path} holds quantised weights ({found}): {_DEQUANTISE}")


_DEQUANTISE = (
    "quantised safetensors are not supported. Use the unquantised release of this model or a GGUF "
    "file, or dequantise it once (in transformers: "
    "AutoModelForCausalLM.from_pretrained(dir).dequantize(), then save_pretrained)."
)


def other_weights(path: Path) -> CheckpointError | None:
    """The error for a directory without model.safetensors and without an index: what it holds
    instead, and what to do with that. None if nothing in it says what it is.
    """
    names = sorted(file.name for file in path.iterdir() if file.is_file())
    for name in names:
        if name in _ADAPTER_WEIGHTS:
            return _adapter(path, name)
    for name in names:
        if name.lower().endswith(".gguf"):
            return CheckpointError(
                f"{path} holds {name} and no safetensors: name the .gguf file itself."
            )
    if any(name.endswith(".safetensors") for name in names):
        return None
    for name in names:
        if name.endswith(_PICKLED) and not name.startswith(_TRAINING_STATE):
            way_out = (
                "They are in Meta's layout: use the model's release in Hugging Face format."
                if name.startswith("consolidated.")
                else "Convert once: AutoModelForCausalLM.from_pretrained(dir)"
                ".save_pretrained(new_dir) in transformers writes safetensors."
            )
            return CheckpointError(
                f"{path} holds only pickled weights ({name}), which can run code when read. "
                f"{way_out}"
            )
    for name in names:
        if name.endswith(_OTHER_FRAMEWORKS):
            return CheckpointError(
                f"{path} holds {name}, weights of another framework. Use the model's release in "
                "safetensors or a GGUF file."
            )
    return None


def _adapter(path: Path, file: str) -> CheckpointError:
    described = read_json(path / _ADAPTER_CONFIG, required=False)
    kind, base = described.get("peft_type", "LORA"), described.get("base_model_name_or_path")
    name = "LoRA" if kind == "LORA" else str(kind)
    of_base = f" for {base}" if isinstance(base, str) and base else ""
    return CheckpointError(
        f"{path} holds a {name} adapter{of_base} ({file}), not a whole model: merge first (peft's "
        "merge_and_unload, then save_pretrained) and give the directory of the merged model. If it "
        f"is merged already, remove {file}."
    )
