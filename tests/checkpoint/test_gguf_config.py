"""GGUF metadata and names become an HF config and HF names; what cannot be mapped is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_builder import HEADS, HIDDEN, KV_HEADS, VOCAB, model_tensors, write_model
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ptd_engine.checkpoint.gguf_config import llama3_divisors
from ptd_engine.checkpoint.gguf_file import GGUFCheckpoint
from ptd_engine.errors import CheckpointError


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """What the llama converter does to q and k: half-split rows -> interleaved pairs."""
    dim = rows.shape[0] // heads
    out = np.empty_like(rows)
    for head in range(heads):
        for pair in range(dim // 2):
            for half in range(2):
                out[head * dim + 2 * pair + half] = rows[head * dim + half * dim // 2 + pair]
    return out


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_config_and_names(arch: str, tmp_path: Path) -> None:
    checkpoint = GGUFCheckpoint(write_model(tmp_path / "мо дель ü.gguf", arch, head_dim=32))
    config = checkpoint.config
    assert config["model_type"] == arch
    assert (config["hidden_size"], config["head_dim"]) == (HIDDEN, 32)
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (HEADS, KV_HEADS)
    assert config["vocab_size"] == VOCAB
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_theta"] == 500000.0
    assert config["rope_scaling"] is None
    assert config["tie_word_embeddings"] is True
    assert config["eos_token_id"] == 2 and checkpoint.generation_config["eos_token_id"] == 2
    names = checkpoint.names()
    assert len(names) == len(model_tensors(arch, 32))
    assert "model.layers.1.mlp.down_proj.weight" in names
    assert ("model.layers.0.self_attn.q_proj.bias" in names) == (arch == "qwen2")
    assert ("model.layers.0.self_attn.q_norm.weight" in names) == (arch == "qwen3")
    assert checkpoint.tensor("model.layers.0.self_attn.q_proj.weight").shape == (HEADS * 32, HIDDEN)


def test_output_tensor_unties(tmp_path: Path) -> None:
    head = {"output.weight": np.ones((VOCAB, HIDDEN), dtype=np.float32)}
    checkpoint = GGUFCheckpoint(write_model(tmp_path / "m.gguf", extra_tensors=head))
    assert checkpoint.config["tie_word_embeddings"] is False
    assert torch.equal(checkpoint.tensor("lm_head.weight"), torch.ones(VOCAB, HIDDEN))


@pytest.mark.parametrize(("name", "heads"), [("attn_q", HEADS), ("attn_k", KV_HEADS)])
def test_llama_rows_are_put_back_and_qwen_rows_are_not(
    name: str, heads: int, tmp_path: Path
) -> None:
    hf = f"model.layers.1.self_attn.{name[-1]}_proj.weight"
    source = model_tensors()[f"blk.1.{name}.weight"]
    stored = {f"blk.1.{name}.weight": interleave(source, heads)}
    llama = GGUFCheckpoint(write_model(tmp_path / "llama.gguf", extra_tensors=stored))
    assert torch.equal(llama.tensor(hf), torch.from_numpy(source))
    qwen = GGUFCheckpoint(write_model(tmp_path / "qwen.gguf", "qwen3"))
    wanted = model_tensors("qwen3")[f"blk.1.{name}.weight"]
    assert torch.equal(qwen.tensor(hf), torch.from_numpy(wanted))


def test_llama_biases_are_put_back_too(tmp_path: Path) -> None:
    q = np.arange(HEADS * 16, dtype=np.float32)
    kv = np.arange(KV_HEADS * 16, dtype=np.float32)
    biases = {
        f"blk.{i}.attn_{n}.bias": v
        for i in range(2)
        for n, v in (
            ("q", interleave(q, HEADS)),
            ("k", interleave(kv, KV_HEADS)),
            ("v", kv),
            ("output", np.zeros(HIDDEN, dtype=np.float32)),
        )
    }
    checkpoint = GGUFCheckpoint(write_model(tmp_path / "m.gguf", extra_tensors=biases))
    assert checkpoint.config["attention_bias"] is True
    for name, wanted in (("q", q), ("k", kv), ("v", kv)):
        found = checkpoint.tensor(f"model.layers.0.self_attn.{name}_proj.bias")
        assert torch.equal(found, torch.from_numpy(wanted))


@pytest.mark.parametrize(
    ("metadata", "wanted"),
    [
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        ({"llama.rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0}, None),
        ({"llama.rope.scaling.type": "none"}, None),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 128,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        ),
    ],
)
def test_rope_scaling(metadata: dict[str, Any], wanted: object, tmp_path: Path) -> None:
    checkpoint = GGUFCheckpoint(write_model(tmp_path / "m.gguf", extra=metadata))
    assert checkpoint.config["rope_scaling"] == wanted


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_factors_are_recovered(factor: float, tmp_path: Path) -> None:
    # The divisors as transformers computes them are what converters store in rope_freqs.weight.
    head_dim, theta = 64, 500000.0
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=131072,
        rope_parameters={**scaling, "rope_theta": theta},
    )
    inv_freq, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    factors = {"rope_freqs.weight": (plain / inv_freq).numpy()}
    path = write_model(tmp_path / "m.gguf", head_dim=head_dim, extra_tensors=factors)
    checkpoint = GGUFCheckpoint(path)
    found = checkpoint.config["rope_scaling"]
    assert found.pop("factor") == pytest.approx(factor, rel=1e-6)
    assert found == {k: v for k, v in scaling.items() if k != "factor"}
    assert not any("rope" in name for name in checkpoint.names())


def test_other_frequency_factors_are_refused(tmp_path: Path) -> None:
    odd = np.array(llama3_divisors(5e5, 16, 8.0, 1.0, 4.0, 8192), dtype=np.float32)
    odd[2] *= 1.5
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        GGUFCheckpoint(write_model(tmp_path / "m.gguf", extra_tensors={"rope_freqs.weight": odd}))


def test_unit_frequency_factors_mean_no_scaling(tmp_path: Path) -> None:
    ones = {"rope_freqs.weight": np.ones(8, dtype=np.float32)}
    checkpoint = GGUFCheckpoint(write_model(tmp_path / "m.gguf", extra_tensors=ones))
    assert checkpoint.config["rope_scaling"] is None


def test_sliding_window_of_llama_is_mistral_and_of_qwen_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "a.gguf", extra={"llama.attention.sliding_window": 64})
    config = GGUFCheckpoint(path).config
    assert (config["model_type"], config["sliding_window"]) == ("mistral", 64)
    path = write_model(tmp_path / "b.gguf", extra={"llama.attention.sliding_window": 512})
    assert "sliding_window" not in GGUFCheckpoint(path).config
    path = write_model(tmp_path / "c.gguf", "qwen2", extra={"qwen2.attention.sliding_window": 64})
    with pytest.raises(CheckpointError, match="sliding_window"):
        GGUFCheckpoint(path)


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"general.type": "adapter"}, "general.type='adapter'.*Merge the adapter"),
        ({"general.type": "mmproj"}, "general.type='mmproj'.*not a whole model"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
        ({"llama.rope.dimension_count": 8}, "dimension_count"),
        ({"llama.attention.head_count": [4, 4]}, "head_count"),
        ({"split.count": 3}, r"split\.count"),
        ({"llama.logit_scale": 0.5}, "logit_scale"),
        ({"tokenizer.ggml.tokens": [f"t{i}" for i in range(VOCAB + 1)]}, "41 tokens"),
    ],
)
def test_unsupported_features_are_named(
    metadata: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=named):
        GGUFCheckpoint(write_model(tmp_path / "m.gguf", extra=metadata))


def test_unknown_architecture_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gemma3.*llama, qwen2, qwen3"):
        GGUFCheckpoint(write_model(tmp_path / "m.gguf", "gemma3"))


def test_unexpected_and_missing_tensors_are_named(tmp_path: Path) -> None:
    extra = {"blk.0.attn_sinks.weight": np.zeros(4, dtype=np.float32)}
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_sinks\.weight"):
        GGUFCheckpoint(write_model(tmp_path / "m.gguf", extra_tensors=extra))
    checkpoint = GGUFCheckpoint(write_model(tmp_path / "n.gguf"))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        checkpoint.tensor("lm_head.weight")
