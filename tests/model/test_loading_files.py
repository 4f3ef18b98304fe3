"""The files of a model directory: sharded, incomplete, stray, damaged, in the wrong container."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ptd_engine.errors import CheckpointError
from ptd_engine.model import load_model
from ptd_engine.testing import tiny
from ptd_engine.testing.compare import max_abs_diff

from .directories import TEXT, logits_of
from .reference import TOLERANCE, full_logits


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny.save(tiny.build("llama3"), tmp_path / "m")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    directory = tiny.save(tiny.build("llama3"), tmp_path / "m", max_shard_size="80KB")
    assert len(list(directory.glob("model-*.safetensors"))) >= 3
    return directory


def test_shards_load(sharded: Path) -> None:
    expected = full_logits(tiny.build("llama3"), TEXT)
    assert max_abs_diff(logits_of(sharded), expected) <= TOLERANCE


def test_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"{shard.name}.*incomplete download\?"):
        load_model(sharded)


@pytest.mark.parametrize("keep", [0, 4, 1000])
def test_cut_shard_is_named(sharded: Path, keep: int) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=rf"{shard.name}.*incomplete download\?"):
        load_model(sharded)


def test_shard_of_another_version_is_noticed(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    tensors = load_file(shard)
    name = sorted(tensors)[0]
    save_file({"other": tensors.pop(name), **tensors}, shard)
    with pytest.raises(CheckpointError, match=rf"{shard.name} lacks {name}"):
        load_model(sharded)


def _forget(directory: Path, *names: str) -> None:
    """Take tensors out of the index, not out of their files."""
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    for name in names:
        del index["weight_map"][name]
    path.write_text(json.dumps(index))


def test_tensors_that_the_index_forgets_are_not_dropped(sharded: Path) -> None:
    expected = logits_of(sharded)
    _forget(sharded, "model.norm.weight")
    assert torch.equal(logits_of(sharded), expected)
    shard = sorted(sharded.glob("model-*.safetensors"))[0]
    bias = "model.layers.0.self_attn.q_proj.bias"
    save_file({**load_file(shard), bias: torch.zeros(64)}, shard)
    with pytest.raises(CheckpointError, match=rf"holds 1 tensors.*{bias}"):
        load_model(sharded)


def test_of_two_copies_the_index_must_name_one(sharded: Path) -> None:
    expected, name = logits_of(sharded), "model.norm.weight"
    index = json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"]
    other = next(file for file in sorted(set(index.values())) if file != index[name])
    save_file({**load_file(sharded / other), name: torch.zeros(64)}, sharded / other)
    assert torch.equal(logits_of(sharded), expected)
    _forget(sharded, name)
    with pytest.raises(CheckpointError, match=rf"both hold {name}.*two versions"):
        load_model(sharded)


def test_single_file_beside_an_index(sharded: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = logits_of(sharded)
    save_file({"model.norm.weight": torch.zeros(64)}, sharded / "model.safetensors")
    assert torch.equal(logits_of(sharded), expected)
    assert "the files that the index names are loaded" in caplog.text
    for shard in sharded.glob("model-*.safetensors"):
        shard.unlink()
    with pytest.raises(CheckpointError, match=r"incomplete download\?.*remove the index"):
        load_model(sharded)


@pytest.mark.parametrize("kind", ["sharded", "llama"])
def test_stray_files_are_not_looked_at(kind: str, request: pytest.FixtureRequest) -> None:
    directory: Path = request.getfixturevalue(kind)
    expected = logits_of(directory)
    stray = {"model.norm.weight": torch.zeros(64), "extra": torch.zeros(1)}
    save_file(stray, directory / "consolidated.safetensors")
    (directory / "a.safetensors").write_bytes(b"not a file of tensors")
    assert torch.equal(logits_of(directory), expected)


def test_adapter_beside_a_whole_model_is_refused(llama: Path) -> None:
    (llama / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"LoRA adapter.*merge first"):
        load_model(llama)


@pytest.mark.parametrize("content", ['{"a": ' + "9" * 5000 + "}", "[" * 100_000, "\ufeff{}"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_json_that_python_cannot_read_is_named(llama: Path, name: str, content: str) -> None:
    (llama / name).write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=rf"{name} is not valid JSON"):
        load_model(llama)


def test_directory_without_weights(llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="incomplete download"):
        load_model(llama)
    (llama / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is not valid JSON"):
        load_model(llama)
    (llama / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load_model(llama)


def test_paths(tmp_path: Path) -> None:
    odd = tiny.save(tiny.build("llama3"), tmp_path / "мо дель ü")
    assert torch.equal(logits_of(odd), logits_of(Path(f"{odd}/")))
    with pytest.raises(CheckpointError, match="directory not found"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="file not found"):
        load_model(tmp_path / "no.gguf")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(CheckpointError, match=r"notes\.txt"):
        load_model(tmp_path / "notes.txt")
