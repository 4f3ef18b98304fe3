"""The tensors of a checkpoint: tied, missing, unexpected, of other shapes and dtypes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from ptd_engine.checkpoint import open_checkpoint
from ptd_engine.errors import CheckpointError, ConfigError
from ptd_engine.kernels import select_ops
from ptd_engine.model import load_model
from ptd_engine.model.config import ModelConfig
from ptd_engine.model.precision import resolve_precision
from ptd_engine.model.weights import load_weights
from ptd_engine.testing import tiny
from ptd_engine.testing.compare import max_abs_diff

from .directories import edit_config, edit_tensors, logits_of
from .reference import TOLERANCE


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny.save(tiny.build("llama3"), tmp_path / "m")


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    return tiny.save(tiny.build("llama32"), tmp_path / "m")


def test_tied_head_is_the_embedding(tied: Path) -> None:
    checkpoint = open_checkpoint(tied)
    assert "lm_head.weight" not in checkpoint.names()
    config = ModelConfig.from_hf(checkpoint.config)
    ops = select_ops("torch")
    head_source: list[torch.Tensor] = []

    def spy(weight: torch.Tensor, bias: torch.Tensor | None, *, head: bool = False) -> Any:
        head_source.append(weight)
        return ops.pack_linear(weight, bias, head=head)

    from dataclasses import replace

    weights, _ = load_weights(
        checkpoint, config, replace(ops, pack_linear=spy), torch.float32, torch.device("cpu")
    )
    assert head_source[-1].data_ptr() == weights.embed.data.data_ptr()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8", "int4"])
def test_a_tied_head_is_held_once_where_the_kernels_read_one_layout(tied: Path, dtype: str) -> None:
    weights = load_model(tied, dtype=dtype, kernels="cpu").weights
    assert weights.lm_head is weights.embed
    layouts = {weights.layers[0].qkv.layout, weights.lm_head.layout}
    assert layouts == ({"int4", "int8"} if dtype == "int4" else {dtype})


def test_an_untied_head_of_int4_weights_is_int8_and_the_embedding_is_not_quantised(
    llama: Path,
) -> None:
    weights = load_model(llama, dtype="int4", kernels="cpu").weights
    layouts = (weights.layers[0].down.layout, weights.lm_head.layout, weights.embed.layout)
    assert layouts == ("int4", "int8", "bfloat16")


def test_untied_without_head_is_an_error(tied: Path) -> None:
    edit_config(tied, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight.*tie_word_embeddings"):
        load_model(tied)


def test_tied_with_a_stored_head_says_which_is_used(
    tied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = logits_of(tied)
    edit_tensors(tied, **{"lm_head.weight": torch.full((97, 64), 7.0)})
    with caplog.at_level(logging.WARNING):
        assert torch.equal(logits_of(tied), expected)
    assert "using model.embed_tokens.weight" in caplog.text


@pytest.mark.parametrize(
    "resized",
    [
        ("model.embed_tokens.weight", "lm_head.weight"),
        ("model.embed_tokens.weight",),
        ("lm_head.weight",),
    ],
)
def test_added_tokens_without_config_are_an_error(resized: tuple[str, ...], llama: Path) -> None:
    edit_tensors(llama, **{name: torch.zeros(99, 64) for name in resized})
    with pytest.raises(CheckpointError, match=rf"{resized[0]}=.*99 rows but vocab_size is 97"):
        load_model(llama)


def test_added_tokens_with_config_load(llama: Path) -> None:
    plain = logits_of(llama)
    names = ("model.embed_tokens.weight", "lm_head.weight")
    stored = open_checkpoint(llama)
    padded = {name: torch.cat((stored.tensor(name), torch.zeros(2, 64))) for name in names}
    edit_tensors(llama, **padded)
    edit_config(llama, vocab_size=99)
    logits = logits_of(llama)
    assert logits.shape[-1] == 99
    assert max_abs_diff(logits[:, :97], plain) <= TOLERANCE


def test_wrong_shape_names_tensor_and_shapes(llama: Path) -> None:
    edit_config(llama, intermediate_size=96)
    with pytest.raises(CheckpointError, match=r"mlp\.gate_proj\.weight.*\[80, 64\].*\[96, 64\]"):
        load_model(llama)


def test_missing_and_unexpected_tensors_are_listed(llama: Path) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    edit_tensors(llama, name, "model.norm.weight")
    with pytest.raises(CheckpointError, match=rf"lacks 2 tensors.*{name}.*model\.norm\.weight"):
        load_model(llama)


def test_biases_that_the_family_has_are_not_optional(tmp_path: Path) -> None:
    directory = tiny.save(tiny.build("qwen2"), tmp_path / "m")
    biases = [f"model.layers.0.self_attn.{p}_proj.bias" for p in "kqv"]
    edit_tensors(directory, *biases)
    with pytest.raises(CheckpointError, match=rf"lacks 3 tensors.*{'.*'.join(biases)}"):
        load_model(directory)


def test_biases_that_the_config_denies_are_listed(tmp_path: Path) -> None:
    directory = tiny.save(tiny.build("llama_bias"), tmp_path / "m")
    edit_config(directory, attention_bias=False)
    with pytest.raises(CheckpointError, match=r"holds 8 tensors.*self_attn\.k_proj\.bias"):
        load_model(directory)


def test_derived_buffers_of_old_exports_are_ignored(llama: Path) -> None:
    expected = logits_of(llama)
    edit_tensors(llama, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)})
    assert torch.equal(logits_of(llama), expected)


def test_explicit_head_dim(tmp_path: Path) -> None:
    directory = tiny.save(tiny.build("qwen3"), tmp_path / "m")
    assert open_checkpoint(directory).tensor("model.layers.0.self_attn.q_proj.weight").shape == (
        128,
        64,
    )
    assert load_model(directory).config.head_dim == 32


@pytest.mark.parametrize("named", [("dtype",), ("torch_dtype",), ("dtype", "torch_dtype"), ()])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_auto_dtype_is_that_of_the_checkpoint(
    named: tuple[str, ...], dtype: str, tmp_path: Path
) -> None:
    model = tiny.build("qwen3").to(getattr(torch, dtype))
    directory = tiny.save(model, tmp_path / "m")
    edit_config(directory, "dtype", "torch_dtype")
    edit_config(directory, **dict.fromkeys(named, dtype))
    loaded = load_model(directory)
    assert loaded.dtype == getattr(torch, dtype)
    assert loaded.precision == dtype
    assert load_model(directory, dtype="float32").dtype == torch.float32


def test_auto_dtype_of_a_quantised_file_is_what_the_kernels_are_best_at() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert resolve_precision("auto", None, gpu).name == "bfloat16"
    assert resolve_precision("auto", None, cpu, "cpu").name == "bfloat16"
    assert resolve_precision("auto", None, cpu, "torch").name == "float32"


def test_dtype_names() -> None:
    cpu = torch.device("cpu")
    assert resolve_precision(torch.float16, "bfloat16", cpu).dtype == torch.float16
    quantised = resolve_precision("int8", "float32", cpu)
    assert (quantised.dtype, quantised.weight_format) == (torch.bfloat16, "int8")
    with pytest.raises(ConfigError, match=r"dtype='int2'.*bfloat16.*int4"):
        resolve_precision("int2", "bfloat16", cpu)
    with pytest.raises(CheckpointError, match="float8"):
        resolve_precision("auto", "float8_e4m3fn", cpu)
