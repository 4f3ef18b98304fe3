"""The demo model by capture and replay: drafting is plain decoding, bit for bit, in both dtypes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from runner.conftest import engine_of, graphs_of, run, visible

from ptd_engine.config import PTDConfig
from ptd_engine.model import load_model
from ptd_engine.testing.graph_twin import GraphTwin

CONTEXT = 96
TREE = PTDConfig(width=2, depth=4, max_draft_nodes=6, max_candidate_nodes=9)
PROMPT = [504, 3575, 282, 4649, 314, 7042, 30, 378, 3575, 282]  # that the text repeats


@pytest.mark.demo
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_drafting_by_replay_equals_plain_decoding_by_replay(demo_path: Path, dtype: str) -> None:
    model = visible(load_model(demo_path, dtype=dtype, kernels="cpu", max_seq_len=CONTEXT))
    sizes = {"max_seq_len": CONTEXT, "kv_buckets": (CONTEXT,)}
    # Recorded once; recording each step again takes a while with 30 layers.
    plain, drafted = (
        engine_of(model, drafter, twin=GraphTwin(again=False), node_buckets=buckets, **sizes)
        for drafter, buckets in (("none", (1,)), (TREE, (16,)))
    )
    for fields in ({}, {"temperature": 0.8, "seed": 7}):
        expected = run(plain, PROMPT, tokens=20, **fields)
        got = run(drafted, PROMPT, tokens=20, **fields)
        assert got.token_ids == expected.token_ids
        assert got.stats.host_syncs == got.stats.steps
        rows = graphs_of(drafted).buffers.header().prefix_len + 1
        for half in ("k", "v"):
            ours, theirs = (
                getattr(graphs_of(engine).cache, half)[:, :, :rows] for engine in (drafted, plain)
            )
            assert torch.equal(ours, theirs)
    assert got.stats.graph_steps > 0
