"""The Triton kernels through the twin of CUDA graphs, launch by launch, interpreted: few steps."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from runner.conftest import PROMPT, eager_engine, engine_of, graphs_of, run

from ptd_engine.model import CausalLM, load_model
from ptd_engine.testing import tiny
from ptd_engine.testing.forced import FixedBlocks

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or torch.cuda.is_available(),
    reason="needs Triton's interpreter; tests/gpu has these on a GPU",
)
CONTEXT = 48
SIZES: dict[str, Any] = {"max_seq_len": CONTEXT}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    shape = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    made = tiny.build("llama32", seed=3, **shape)
    path = tiny.save(made, tmp_path_factory.mktemp("triton") / "model")
    return load_model(path, dtype="bfloat16", kernels="triton", max_seq_len=CONTEXT)


@pytest.mark.slow
def test_drafting_by_replay_equals_plain_decoding_in_bfloat16(model: CausalLM) -> None:
    fields: dict[str, Any] = {"temperature": 0.7, "seed": 5, "tokens": 7}
    expected = run(eager_engine(model, "none", **SIZES), **fields)
    plain = engine_of(model, "none", node_buckets=(1,), kv_buckets=(CONTEXT,), **SIZES)
    assert run(plain, **fields).token_ids == expected.token_ids
    drafter = FixedBlocks(expected.token_ids, [2, 1, 2], decoys=[7, 8])
    drafted = engine_of(model, drafter, node_buckets=(8,), kv_buckets=(CONTEXT,), **SIZES)
    got = run(drafted, **fields)
    assert got.token_ids == expected.token_ids
    assert got.stats.graph_steps == got.stats.steps - 1 and got.stats.accepted > 0
    rows = graphs_of(drafted).buffers.header().prefix_len + 1
    assert rows > len(PROMPT)
    for half in ("k", "v"):
        ours, theirs = (getattr(graphs_of(e).cache, half)[:, :, :rows] for e in (drafted, plain))
        assert torch.equal(ours, theirs)


def test_the_attention_works_in_memory_of_the_runner(model: CausalLM) -> None:
    runner = graphs_of(engine_of(model, "none", kv_buckets=(CONTEXT,), **SIZES))
    workspace = runner.memory.workspace
    assert workspace is not None and workspace.numel() > 0
    assert any(held is workspace for held in runner.memory.rewritten)
