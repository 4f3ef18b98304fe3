"""Rotary types against transformers; both config spellings; precision under bf16."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ptd_engine.errors import CheckpointError
from ptd_engine.model import ModelConfig, RopeTable
from ptd_engine.model.rope import inverse_frequencies
from ptd_engine.testing import tiny
from ptd_engine.testing.compare import StepRunner, max_abs_diff

from .conftest import Pair
from .reference import BRANCHING, TOLERANCE, decoded_logits, full_logits, path_to

TRAINED = 32
rope_types = pytest.mark.parametrize("rope_type", sorted(tiny.ROPES))
lengths = pytest.mark.parametrize("prompt_len", [20, 40, 80])


def _pair(make_pair: Callable[..., Pair], rope_type: str) -> Pair:
    return make_pair(
        "llama3", max_position_embeddings=TRAINED, rope_parameters=dict(tiny.ROPES[rope_type])
    )


@rope_types
@lengths
def test_prefill_and_decoding_equal_transformers(
    rope_type: str, prompt_len: int, make_pair: Callable[..., Pair], tokens: list[int]
) -> None:
    reference, model = _pair(make_pair, rope_type)
    runner = StepRunner(model)
    prompt, rest = tokens[:prompt_len], tokens[prompt_len : prompt_len + 20]
    prefill = runner.prefill(prompt)
    assert max_abs_diff(prefill, full_logits(reference, prompt)) <= TOLERANCE
    rows = []
    for token in rest:
        rows.append(runner.step([token], [-1]))
        runner.length += 1
    expected = decoded_logits(reference, prompt, rest)
    assert max_abs_diff(torch.cat(rows), expected) <= TOLERANCE


@rope_types
def test_tree_across_the_trained_length(
    rope_type: str, make_pair: Callable[..., Pair], tokens: list[int]
) -> None:
    reference, model = _pair(make_pair, rope_type)
    runner = StepRunner(model)
    prompt, nodes = tokens[: TRAINED - 2], tokens[TRAINED : TRAINED + len(BRANCHING)]
    runner.prefill(prompt)
    ours = runner.step(nodes, BRANCHING)
    for node in range(len(BRANCHING)):
        path = [nodes[i] for i in path_to(node, BRANCHING)]
        # A fresh model: the dynamic type keeps state between calls in transformers.
        state = reference.model.rotary_emb
        state.inv_freq, state.max_seq_len_cached = state.original_inv_freq.clone(), TRAINED
        expected = decoded_logits(reference, prompt, path)[-1]
        assert max_abs_diff(ours[node], expected) <= TOLERANCE, node


def test_dynamic_table_follows_the_prompt_back_and_forth() -> None:
    config = _config(rope_parameters=tiny.ROPES["dynamic"], max_position_embeddings=TRAINED)
    table = RopeTable(config, 128)
    storage = table.cos_sin.data_ptr()
    for prompt_len in (10, 100, 40, 70, 10, 128, 20):
        table.prepare(prompt_len)
        fresh = RopeTable(config, 128)
        fresh.prepare(prompt_len)
        assert torch.equal(table.cos_sin, fresh.cos_sin), prompt_len
        lengths = torch.arange(1, 129).clamp(min=prompt_len)[:, None]
        frequencies, _ = inverse_frequencies(config, lengths)
        angles = torch.arange(128)[:, None] * frequencies
        assert torch.equal(table.cos_sin, torch.cat((angles.cos(), angles.sin()), -1))
    assert table.cos_sin.data_ptr() == storage


def _config(**changes: Any) -> ModelConfig:
    values: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 8192,
    }
    return ModelConfig.from_hf({**values, **changes})


def _hf_frequencies(**changes: Any) -> tuple[torch.Tensor, float]:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rotary = LlamaRotaryEmbedding(
        LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=8192, **changes)
    )
    return rotary.inv_freq, rotary.attention_scaling


@rope_types
@pytest.mark.parametrize("type_key", ["rope_type", "type"])
def test_both_spellings_give_transformers_frequencies(rope_type: str, type_key: str) -> None:
    parameters = dict(tiny.ROPES[rope_type])
    expected, scaling = _hf_frequencies(rope_parameters=dict(parameters))
    parameters[type_key] = parameters.pop("rope_type")
    old = dict(parameters)
    theta = old.pop("rope_theta")
    for config in (
        _config(rope_parameters=parameters),
        _config(rope_scaling=old, rope_theta=theta),
        _config(rope_scaling={**old, "rope_theta": theta}),
        _config(rope_parameters={"rope_type": "default", "rope_theta": theta}, rope_scaling=old),
    ):
        frequencies, ours = inverse_frequencies(config)
        assert frequencies.dtype == torch.float32
        assert torch.equal(frequencies, expected)
        assert ours == scaling


def test_theta_at_any_place_and_its_default() -> None:
    assert _config().rope.theta == 10000.0
    assert _config(rope_theta=5e5).rope.theta == 5e5
    assert _config(rope_parameters={"rope_theta": 1e6}).rope.theta == 1e6
    unscaled = _config(rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    assert torch.equal(
        RopeTable(unscaled, 64).cos_sin, RopeTable(_config(rope_theta=1e6), 64).cos_sin
    )
    assert _config(rope_scaling=None, rope_theta=7.0).rope.rope_type == "default"
    hidden = _config(rope_parameters={"rope_theta": 1e6}, rope_scaling={"rope_theta": None})
    assert hidden.rope.theta == 1e6
    assert _config(rope_parameters={"rope_theta": None}, rope_theta=5e5).rope.theta == 5e5


def test_an_empty_rope_scaling_hides_no_rope_parameters() -> None:
    yarn = dict(tiny.ROPES["yarn"])
    expected, scaling = _hf_frequencies(rope_parameters=dict(yarn), rope_scaling={})
    for empty in ({}, None, {"rope_theta": yarn["rope_theta"]}, {"rope_type": None}):
        config = _config(rope_parameters=dict(yarn), rope_scaling=empty)
        frequencies, ours = inverse_frequencies(config)
        assert torch.equal(frequencies, expected) and ours == scaling, empty


def test_rope_scaling_replaces_the_parameters_of_another_type() -> None:
    first, second = dict(tiny.ROPES["llama3"]), {"rope_type": "yarn", "factor": 4.0}
    expected, scaling = _hf_frequencies(rope_scaling=dict(second), rope_theta=first["rope_theta"])
    config = _config(rope_parameters=first, rope_scaling=second)
    frequencies, ours = inverse_frequencies(config)
    assert torch.equal(frequencies, expected) and ours == scaling
    assert config.rope.original_max == 8192  # not the 32 of the llama3 parameters


@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("named", [{}, {"type": None}, {"rope_type": ""}])
def test_factor_without_a_type_is_refused(spelling: str, named: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=rf"{spelling}=.*rope_type.*linear"):
        _config(**{spelling: {"factor": 2.0, **named}})


@pytest.mark.parametrize("key", ["rope_type", "type"])
@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
def test_unknown_rope_type_is_refused(key: str, spelling: str) -> None:
    with pytest.raises(CheckpointError, match=r"rope_type='longrope'.*yarn"):
        _config(**{spelling: {key: "longrope", "factor": 2.0}})


def test_missing_parameter_and_partial_rotation_are_refused() -> None:
    config = _config(rope_scaling={"rope_type": "linear"})
    with pytest.raises(CheckpointError, match="factor"):
        RopeTable(config, 8)
    with pytest.raises(CheckpointError, match="partial_rotary_factor"):
        _config(partial_rotary_factor=0.5)
    with pytest.raises(CheckpointError, match="flat dict"):
        _config(rope_parameters={"full_attention": {"rope_type": "default"}})


@pytest.mark.parametrize("theta", ["x", 0, -1.0, math.inf, math.nan, True, [1], 10**400])
@pytest.mark.parametrize("spelling", ["flat", "rope_parameters"])
def test_theta_must_be_a_positive_number(theta: Any, spelling: str) -> None:
    with pytest.raises(CheckpointError, match=r"rope_theta=.*a finite number > 0"):
        _config(
            **({"rope_theta": theta} if spelling == "flat" else {spelling: {"rope_theta": theta}})
        )


@pytest.mark.parametrize(
    ("rope_type", "changes", "named"),
    [
        ("yarn", {"factor": -4}, "factor=-4"),
        ("dynamic", {"factor": 0}, "factor=0"),
        ("linear", {"factor": math.nan}, "factor=nan"),
        ("linear", {"factor": "2"}, "factor='2'"),
        ("yarn", {"beta_fast": math.inf}, "beta_fast=inf"),
        ("yarn", {"attention_factor": 0}, "attention_factor=0"),
        ("yarn", {"truncate": "false"}, "truncate='false'"),
        ("llama3", {"high_freq_factor": 1.0}, "high_freq_factor=1.0"),
        ("llama3", {"original_max_position_embeddings": 0}, "original_max_position_embeddings=0"),
    ],
)
def test_scaling_parameters_out_of_range_are_named(
    rope_type: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        _config(rope_parameters={**tiny.ROPES[rope_type], **changes})


def test_parameters_that_the_type_cannot_compute_with_are_named() -> None:
    config = _config(rope_parameters={**tiny.ROPES["yarn"], "rope_theta": 1.0})
    with pytest.raises(CheckpointError, match=r"type 'yarn' can compute with"):
        RopeTable(config, 8)


def test_table_on_the_meta_device_takes_no_memory() -> None:
    table = RopeTable(_config(), 2**40, "meta").cos_sin
    assert (table.shape, table.dtype) == ((2**40, 16), RopeTable(_config(), 8).cos_sin.dtype)
    with pytest.raises(CheckpointError, match="factor"):
        RopeTable(_config(rope_scaling={"rope_type": "linear"}), 8, "meta")


def test_table_keeps_its_precision_at_long_positions() -> None:
    config = _config(rope_theta=10000.0, torch_dtype="bfloat16")
    table = RopeTable(config, 8192).cos_sin
    assert table.dtype == torch.float32
    for position in (257, 1857, 8191):
        for i in range(8):
            angle = position / 10000.0 ** (2 * i / 16)
            assert abs(float(table[position, i]) - math.cos(angle)) < 1e-2
            assert abs(float(table[position, 8 + i]) - math.sin(angle)) < 1e-2
    assert not torch.equal(table[256], table[257])


def test_bfloat16_queries_are_rotated_by_exact_angles() -> None:
    from ptd_engine.kernels import select_ops

    ops = select_ops("torch", dtype=torch.bfloat16, head_dim=16)
    table = RopeTable(_config(rope_theta=10000.0), 8192).cos_sin
    positions = torch.tensor([257, 1857, 8191], dtype=torch.int32)
    qkv = torch.zeros(3, 3 * 16, dtype=torch.bfloat16)
    qkv[:, :8] = 1.0  # first half of the query is 1, second 0: rotated, it is (cos, sin)
    k, v = torch.zeros(2, 1, 4, 16, dtype=torch.bfloat16).unbind(0)
    q = torch.empty(3, 1, 16, dtype=torch.bfloat16)
    prefix = torch.zeros(1, dtype=torch.int32)
    ops.rope_kv_write(qkv, None, None, 1e-6, table, positions, prefix, k, v, q)
    wanted = table[positions.long()]
    assert max_abs_diff(q[:, 0], wanted) <= 2**-8
