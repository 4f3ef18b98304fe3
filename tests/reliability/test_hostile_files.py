"""Files that ask for too much, or lead elsewhere: refused at once, by name. Fuzzing found them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz import gguf_documents
from fuzz.gguf_documents import ARRAY, F32, STRING, U32, Document, Pair, encode
from safetensors.torch import save_file

from ptd_engine.checkpoint import open_checkpoint
from ptd_engine.checkpoint.gguf_file import GGUFCheckpoint
from ptd_engine.errors import CheckpointError
from ptd_engine.model import load_model
from ptd_engine.testing import tiny
from ptd_engine.text import Tokenizer, load_tokenizer


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.save(tiny.build("llama3"), tmp_path / "m")


@pytest.mark.parametrize(
    "name",
    [
        "../other/model.safetensors",
        "/etc/passwd",
        "sub/model.safetensors",
        "a\\b.safetensors",
        "a\0.safetensors",
        "x" * 300 + ".safetensors",
        "",
        "model.bin",
    ],
)
def test_an_index_names_files_beside_it(name: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    save_file({"model.norm.weight": torch.ones(64)}, tmp_path / "other/model.safetensors")
    index = {"weight_map": {"model.norm.weight": name}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"index\.json=.*plain name"):
        open_checkpoint(model)


def change_config(model: Path, **values: Any) -> None:
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_two_thousand_million_layers(model: Path) -> None:
    change_config(model, num_hidden_layers=2**31 - 1)
    with pytest.raises(CheckpointError, match="num_hidden_layers=2147483647"):
        load_model(model)


def test_sizes_beyond_the_file(model: Path) -> None:
    change_config(model, hidden_size=2**30, intermediate_size=2**30, vocab_size=2**31 - 1)
    with pytest.raises(CheckpointError, match="does not belong to these weights|tokens were added"):
        load_model(model, max_seq_len=16)


def gguf(tmp_path: Path, kind: str = "llama", **values: Any) -> Path:
    """A model with some of its metadata replaced: key (dots as __) -> (kind, value)."""
    document: Document = gguf_documents.model("llama", kind)
    replaced = {key.replace("__", "."): value for key, value in values.items()}
    pairs = [pair for pair in document.pairs if pair.key not in replaced]
    document.pairs = [*pairs, *(Pair(key, *value) for key, value in replaced.items())]
    path = tmp_path / "m.gguf"
    path.write_bytes(encode(document))
    return path


def test_the_file_that_is_changed_here_loads(tmp_path: Path) -> None:
    path = gguf(tmp_path)
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        GGUFCheckpoint(path)  # its values are no scaling: they are what is checked last
    assert load_tokenizer(path).encode("abc")


def test_a_head_of_four_thousand_million_dimensions(tmp_path: Path) -> None:
    size = {
        "llama__attention__key_length": (U32, 2**32 - 2),
        "llama__rope__dimension_count": (U32, 2**32 - 2),
    }
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        GGUFCheckpoint(gguf(tmp_path, **size))


@pytest.mark.parametrize("base", [-5.0, 0.0, float("nan"), float("inf")])
def test_a_rotation_without_a_base(base: float, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        GGUFCheckpoint(gguf(tmp_path, llama__rope__freq_base=(F32, base)))


def test_kinds_of_tokens_that_are_no_numbers(tmp_path: Path) -> None:
    kinds = [float("nan"), float("inf"), *[1.0] * 10]
    path = gguf(tmp_path, tokenizer__ggml__token_type=(ARRAY, (F32, kinds)))
    assert load_tokenizer(path).encode("abc")


def test_a_token_as_long_as_a_book(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab", *map(str, range(5)), "a" * 100_000]
    path = gguf(tmp_path, tokenizer__ggml__tokens=(ARRAY, (STRING, tokens)))
    with pytest.raises(CheckpointError, match=r"tokens entry='aaa.*4096 characters"):
        load_tokenizer(path)


def test_a_tokenizer_whose_settings_are_of_another_type(
    tiny_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    tiny_tokenizer.hf.save_pretrained(tmp_path / "t")
    path = tmp_path / "t/tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": "many"}))
    with pytest.raises(CheckpointError, match=r"tokenizer in .* (does not work|cannot be loaded)"):
        load_tokenizer(tmp_path / "t")
