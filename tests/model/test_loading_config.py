"""config.json and generation_config.json: windows, unsupported values, token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ptd_engine.checkpoint import open_checkpoint
from ptd_engine.errors import CheckpointError, ConfigError
from ptd_engine.model import load_model
from ptd_engine.model.config import ModelConfig, eos_ids_of
from ptd_engine.testing import tiny
from ptd_engine.testing.compare import StepRunner, max_abs_diff

from .directories import TEXT, edit_config, logits_of
from .reference import TOLERANCE, full_logits


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny.save(tiny.build("llama3"), tmp_path / "m")


_ON = {"sliding_window": 16, "use_sliding_window": True}
_ONE_SLIDES = ["full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("family", "changes", "window"),
    [
        ("qwen2", {"sliding_window": 16, "use_sliding_window": False}, None),
        ("qwen2", {"sliding_window": None, "use_sliding_window": True}, None),
        ("qwen2", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 9}, None),
        ("qwen2", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1}, 16),
        ("qwen2", {**_ON, "max_window_layers": 0, "layer_types": ["full_attention"] * 2}, None),
        ("qwen2", {**_ON, "max_window_layers": 9, "layer_types": _ONE_SLIDES}, 16),
        ("qwen3", {**_ON, "use_sliding_window": False, "layer_types": _ONE_SLIDES}, None),
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


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_absent_keys_are_the_familys_defaults(family: str) -> None:
    from transformers import AutoConfig

    written = {
        "vocab_size": 9,
        "hidden_size": 2048,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 32,
        "max_position_embeddings": 32768,
    }
    theirs = AutoConfig.for_model(family, **written)
    read = ModelConfig.from_hf({**written, "model_type": family})
    assert read.num_kv_heads == theirs.num_key_value_heads
    assert read.head_dim == getattr(theirs, "head_dim", 2048 // 32)
    assert read.rms_norm_eps == theirs.rms_norm_eps
    assert read.tie_word_embeddings == theirs.tie_word_embeddings
    assert read.rope.theta == theirs.rope_parameters["rope_theta"]
    assert read.rope.rope_type == theirs.rope_parameters["rope_type"]
    assert read.sliding_window == getattr(theirs, "sliding_window", None)
    assert read.o_bias == getattr(theirs, "attention_bias", False)
    assert read.bos_token_id is None and read.eos_token_ids == ()


@pytest.mark.parametrize(
    ("family", "changes"),
    [("mistral", {}), ("qwen25", {"use_sliding_window": True, "max_window_layers": 1})],
)
def test_active_window_is_refused_beyond_its_length(
    family: str, changes: dict[str, Any], tokens: list[int], tmp_path: Path
) -> None:
    reference = tiny.build(family, sliding_window=16, **changes)
    directory = tiny.save(reference, tmp_path / "m")
    for length in (128, 17):
        with pytest.raises(
            ConfigError, match=rf"max_seq_len={length}.*sliding window.*max_seq_len=16"
        ):
            load_model(directory, max_seq_len=length)
    with pytest.raises(ConfigError, match="max_seq_len=128"):
        load_model(directory)
    # Up to the window's own length it hides nothing: a token sees itself and 15 before it.
    runner = StepRunner(load_model(directory, max_seq_len=16))
    expected = full_logits(reference, tokens[:16])
    assert max_abs_diff(runner.prefill(tokens[:16]), expected) <= TOLERANCE
    everything = tiny.build(family, sliding_window=None, use_sliding_window=False)
    unlike = max_abs_diff(full_logits(reference, tokens[:17]), full_logits(everything, tokens[:17]))
    assert unlike > TOLERANCE  # beyond it, it does
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
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layer_types='chunked_att"),
        ({"layer_types": "full_attention"}, "layer_types='full_attention' is not valid.*a list"),
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
