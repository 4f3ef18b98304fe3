"""Model directories as users have them: tied, sharded, damaged, foreign."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ptd_engine.checkpoint import open_checkpoint
from ptd_engine.errors import CheckpointError, ConfigError
from ptd_engine.kernels import select_ops
from ptd_engine.model import load_model
from ptd_engine.model.config import ModelConfig, eos_ids_of
from ptd_engine.model.weights import load_weights
from ptd_engine.testing import tiny
from ptd_engine.testing.compare import StepRunner, max_abs_diff

from .reference import TOLERANCE, full_logits

TEXT = [5, 9, 3, 44, 90, 12, 7]


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny.save(tiny.build("llama3"), tmp_path / "m")


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    return tiny.save(tiny.build("llama32"), tmp_path / "m")


def edit_config(directory: Path, *removed: str, **changes: Any) -> None:
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in config.items() if k not in removed}))


def edit_tensors(directory: Path, *removed: str, **changes: torch.Tensor) -> None:
    path = directory / "model.safetensors"
    tensors = {**load_file(path), **changes}
    save_file({k: v for k, v in tensors.items() if k not in removed}, path)


def logits_of(directory: Path, **options: Any) -> torch.Tensor:
    return StepRunner(load_model(directory, **options)).prefill(TEXT)


def test_tied_head_is_the_embedding(tied: Path) -> None:
    checkpoint = open_checkpoint(tied)
    assert "lm_head.weight" not in checkpoint.names()
    config = ModelConfig.from_hf(checkpoint.config)
    ops = select_ops("torch")
    head_source: list[torch.Tensor] = []

    def spy(weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        head_source.append(weight)
        return ops.pack_linear(weight, bias)

    from dataclasses import replace

    weights, _ = load_weights(
        checkpoint, config, replace(ops, pack_linear=spy), torch.float32, torch.device("cpu")
    )
    assert head_source[-1].data_ptr() == weights.embed.data_ptr()


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


@pytest.mark.parametrize("kind", ["sharded", "llama"])
def test_stray_files_are_not_looked_at(kind: str, request: pytest.FixtureRequest) -> None:
    directory: Path = request.getfixturevalue(kind)
    expected = logits_of(directory)
    stray = {"model.norm.weight": torch.zeros(64), "extra": torch.zeros(1)}
    save_file(stray, directory / "consolidated.safetensors")
    (directory / "a.safetensors").write_bytes(b"not a file of tensors")
    assert torch.equal(logits_of(directory), expected)


def test_pickled_weights_are_refused_with_a_way_out(llama: Path) -> None:
    (llama / "model.safetensors").rename(llama / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*save_pretrained"):
        load_model(llama)


def test_adapter_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    save_file({"lora_A": torch.zeros(1)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=r"LoRA adapter.*merge first"):
        load_model(tmp_path)


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


def test_added_tokens_without_config_are_an_error(llama: Path) -> None:
    edit_tensors(llama, **{"model.embed_tokens.weight": torch.zeros(99, 64)})
    with pytest.raises(CheckpointError, match="99 rows but vocab_size is 97"):
        load_model(llama)


def test_wrong_shape_names_tensor_and_shapes(llama: Path) -> None:
    edit_config(llama, intermediate_size=96)
    with pytest.raises(CheckpointError, match=r"mlp\.gate_proj\.weight.*\[80, 64\].*\[96, 64\]"):
        load_model(llama)


def test_missing_and_unexpected_tensors_are_listed(llama: Path) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    edit_tensors(llama, name, "model.norm.weight")
    with pytest.raises(CheckpointError, match=rf"lacks 2 tensors.*{name}.*model\.norm\.weight"):
        load_model(llama)


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
    assert loaded.weights.embed.dtype == loaded.dtype
    assert load_model(directory, dtype="float32").dtype == torch.float32


def test_auto_dtype_of_a_quantised_file() -> None:
    from ptd_engine.model.weights import resolve_dtype

    assert resolve_dtype("auto", None, torch.device("cpu")) == torch.float32
    assert resolve_dtype("auto", None, torch.device("cuda")) == torch.bfloat16
    assert resolve_dtype(torch.float16, "bfloat16", torch.device("cpu")) == torch.float16
    with pytest.raises(ConfigError, match=r"dtype='int4'.*bfloat16"):
        resolve_dtype("int4", "bfloat16", torch.device("cpu"))
    with pytest.raises(CheckpointError, match="float8"):
        resolve_dtype("auto", "float8_e4m3fn", torch.device("cpu"))


@pytest.mark.parametrize(
    ("family", "changes", "window"),
    [
        ("qwen2", {"sliding_window": 16, "use_sliding_window": False}, None),
        ("qwen2", {"sliding_window": None, "use_sliding_window": True}, None),
        ("qwen2", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 9}, None),
        ("qwen2", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1}, 16),
        ("qwen3", {"sliding_window": 16}, None),
        ("mistral", {"sliding_window": None}, None),
        ("mistral", {"sliding_window": 16}, 16),
        ("llama", {"sliding_window": 16}, None),
    ],
)
def test_which_windows_are_active(
    family: str, changes: dict[str, Any], window: int | None, tmp_path: Path
) -> None:
    config = json.loads(
        (tiny.save(tiny.build("llama3"), tmp_path / "m") / "config.json").read_text()
    )
    architecture = family.capitalize() + "ForCausalLM"
    merged = {**config, "architectures": [architecture], "model_type": family, **changes}
    assert ModelConfig.from_hf(merged).sliding_window == window


def test_mistral_window_that_is_absent_is_the_familys_default() -> None:
    config = {
        "model_type": "mistral",
        "vocab_size": 9,
        "hidden_size": 16,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 8,
        "max_position_embeddings": 32768,
    }
    read = ModelConfig.from_hf(config)
    assert (read.sliding_window, read.num_kv_heads) == (4096, 8)


def test_active_window_is_refused_beyond_its_length(tmp_path: Path) -> None:
    reference = tiny.build("mistral", sliding_window=16)
    directory = tiny.save(reference, tmp_path / "m")
    with pytest.raises(ConfigError, match=r"max_seq_len=128.*sliding window.*max_seq_len=16"):
        load_model(directory)
    ours = logits_of(directory, max_seq_len=16)
    assert max_abs_diff(ours, full_logits(reference, TEXT)) <= TOLERANCE
    with pytest.raises(ConfigError, match="max_seq_len=0"):
        load_model(directory, max_seq_len=0)


def test_inactive_window_is_full_attention(tmp_path: Path) -> None:
    reference = tiny.build("qwen25", sliding_window=4, use_sliding_window=False)
    directory = tiny.save(reference, tmp_path / "m")
    assert max_abs_diff(logits_of(directory), full_logits(reference, TEXT)) <= TOLERANCE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel.*LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'.*silu"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ({"hidden_size": None, "vocab_size": None}, "lacks vocab_size, hidden_size"),
        ({"architectures": 5}, "architectures=5 is not valid.*a list of strings"),
        ({"architectures": "LlamaForCausalLM"}, "architectures='LlamaForCausalLM' is not valid"),
        ({"architectures": [["x"]]}, "architectures="),
        ({"architectures": [], "model_type": ["llama"]}, "model_type="),
        ({"num_attention_heads": 0}, "num_attention_heads=0"),
        ({"num_attention_heads": True}, "num_attention_heads=True"),
        ({"num_key_value_heads": "2"}, "num_key_value_heads='2'"),
        ({"vocab_size": 96.5}, "vocab_size=96.5"),
        ({"max_position_embeddings": 2**31}, "max_position_embeddings=2147483648"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps=-1e-05"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings='false'"),
        ({"eos_token_id": "2"}, "eos_token_id='2'"),
        ({"bos_token_id": [[1]]}, "bos_token_id="),
    ],
)
def test_unsupported_configs_say_why(llama: Path, changes: dict[str, Any], message: str) -> None:
    edit_config(llama, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_model(llama)


@pytest.mark.parametrize(("value", "ids"), [(2, (2,)), ([5, 6], (2, 5, 6)), (None, (2,))])
def test_eos_ids_join_those_of_generation_config(
    llama: Path, value: Any, ids: tuple[int, ...]
) -> None:
    edit_config(llama, eos_token_id=value)
    assert load_model(llama).config.eos_token_ids == ids


@pytest.mark.parametrize("bad", ["2", [1, "x"], -1, [2**31], True, [[1]], 1.5, {"a": 1}])
def test_malformed_token_ids_name_their_field(bad: Any) -> None:
    assert eos_ids_of([2**31 - 1, 0], "eos_token_id") == (2**31 - 1, 0)
    with pytest.raises(CheckpointError, match=r"eos_token_id in some\.json=.*a token id of 0"):
        eos_ids_of(bad, "eos_token_id in some.json")


def test_generation_config_is_offered(llama: Path) -> None:
    (llama / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    assert open_checkpoint(llama).generation_config["eos_token_id"] == [3, 4]
    (llama / "generation_config.json").unlink()
    assert open_checkpoint(llama).generation_config == {}
