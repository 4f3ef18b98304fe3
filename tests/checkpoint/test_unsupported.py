"""Adapters, quantised weights and other containers are refused with what to do instead."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ptd_engine.checkpoint import open_checkpoint
from ptd_engine.errors import CheckpointError


def directory(
    path: Path, config: dict[str, Any] | None = None, weights: str | None = "model.safetensors"
) -> Path:
    """A model directory with a config and one tensor, as far as they are wanted."""
    path.mkdir(exist_ok=True)
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    if weights is not None:
        save_file({"model.norm.weight": torch.ones(4)}, path / weights)
    return path


@pytest.mark.parametrize("key", ["quantization_config", "compression_config", "quantization"])
@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"quant_method": "gptq", "bits": 4}, "of method 'gptq'"),
        ({"quant_method": "fp8"}, "of method 'fp8'"),
        ({"group_size": 64, "bits": 4}, ""),
        ("awq", "of method 'awq'"),
    ],
)
def test_quantised_config_is_refused(key: str, value: Any, named: str, tmp_path: Path) -> None:
    path = directory(tmp_path / "m", {key: value})
    with pytest.raises(CheckpointError, match=rf"a {key}.*{named}.*not supported.*dequantise it"):
        open_checkpoint(path)
    # Weights under a quantiser's own file name do not hide the reason.
    path = directory(tmp_path / "n", {key: value}, "gptq_model-4bit-128g.safetensors")
    with pytest.raises(CheckpointError, match=rf"a {key}.*GGUF.*remove {key}"):
        open_checkpoint(path)


@pytest.mark.parametrize("value", [None, {}])
def test_config_that_denies_quantisation_loads(value: Any, tmp_path: Path) -> None:
    path = directory(tmp_path / "m", {"quantization_config": value})
    assert open_checkpoint(path).names() == ["model.norm.weight"]


@pytest.mark.parametrize(
    "suffix",
    [
        *("qweight", "qzeros", "scales", "weight_packed", "weight_scale", "weight_scale_inv"),
        *("SCB", "weight.absmax", "weight.quant_map"),
    ],
)
def test_quantised_tensors_tell_where_the_config_is_silent(suffix: str, tmp_path: Path) -> None:
    path, name = directory(tmp_path / "m", {}), f"model.layers.0.mlp.down_proj.{suffix}"
    save_file({"a": torch.ones(4), name: torch.zeros(1)}, path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"quantised weights \({name}\).*dequantise it"):
        open_checkpoint(path)


@pytest.mark.parametrize("config", [None, {"model_type": "llama"}])
@pytest.mark.parametrize(
    "files",
    [
        ("adapter_config.json",),
        ("adapter_config.json", "adapter_model.safetensors"),
        ("adapter_model.safetensors",),
        ("adapter_model.bin",),
    ],
)
def test_adapter_alone_is_refused(
    files: tuple[str, ...], config: dict[str, Any] | None, tmp_path: Path
) -> None:
    path = directory(tmp_path / "m", config, None)
    for name in files:
        (path / name).write_text("{}")
    with pytest.raises(CheckpointError, match=rf"LoRA adapter \({files[0]}\).*merge first"):
        open_checkpoint(path)


def test_adapter_names_its_kind_and_base(tmp_path: Path) -> None:
    path = directory(tmp_path / "m", {})
    described = {"peft_type": "IA3", "base_model_name_or_path": "owner/base"}
    (path / "adapter_config.json").write_text(json.dumps(described))
    with pytest.raises(CheckpointError, match=r"IA3 adapter for owner/base.*remove adapter_config"):
        open_checkpoint(path)


def test_adapter_weights_beside_a_whole_model_are_stray(tmp_path: Path) -> None:
    path = directory(tmp_path / "m", {})
    save_file({"lora_A": torch.zeros(1)}, path / "adapter_model.safetensors")
    assert open_checkpoint(path).names() == ["model.norm.weight"]


class Trap:
    """Unpickling it would create the file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.path, "w"))


@pytest.mark.parametrize("config", [None, {"model_type": "llama"}])
@pytest.mark.parametrize(
    ("name", "way_out"),
    [
        ("pytorch_model.bin", "save_pretrained"),
        ("pytorch_model-00001-of-00002.bin", "save_pretrained"),
        ("consolidated.00.pth", "release in Hugging Face format"),
    ],
)
def test_pickled_weights_are_named_and_never_read(
    name: str, way_out: str, config: dict[str, Any] | None, tmp_path: Path
) -> None:
    path = directory(tmp_path / "m", config, None)
    (path / "training_args.bin").write_bytes(b"")
    (path / name).write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(CheckpointError, match=rf"only pickled weights \({name}\).*{way_out}"):
        open_checkpoint(path)
    assert not (tmp_path / "sprung").exists()
    pickle.loads((path / name).read_bytes()).close()
    assert (tmp_path / "sprung").exists()  # the trap works


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("m-Q8_0.gguf", "name the .gguf file itself"),
        ("tf_model.h5", "weights of another framework"),
        ("flax_model.msgpack", "weights of another framework"),
    ],
)
def test_other_containers_are_named(name: str, said: str, tmp_path: Path) -> None:
    path = directory(tmp_path / "m", {}, None)
    (path / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match=rf"{name}.*{said}"):
        open_checkpoint(path)


@pytest.mark.parametrize("name", ["training_args.bin", "optimizer.pt", "rng_state_0.pth"])
def test_training_state_is_not_taken_for_weights(name: str, tmp_path: Path) -> None:
    path = directory(tmp_path / "m", {}, None)
    (path / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors.*incomplete download\?"):
        open_checkpoint(path)


def test_safetensors_that_no_index_names_are_listed(tmp_path: Path) -> None:
    path = directory(tmp_path / "m", {}, "model.fp16.safetensors")
    (path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"found model\.fp16\.safetensors, which no index"):
        open_checkpoint(path)
