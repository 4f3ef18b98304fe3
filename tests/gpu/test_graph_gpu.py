"""Steps replayed from CUDA graphs on a GPU: the tokens of op by op, one wait, no allocation.

Rehearsed on a CPU the graphs are the recording twin's, and the kernels torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine.conftest import finish
from gpu.device import DEVICE, ON_GPU, sizes

from ptd_engine import _core
from ptd_engine.config import PTDConfig, SamplingParams
from ptd_engine.drafters import make_drafter
from ptd_engine.engine import Engine
from ptd_engine.errors import UnavailableError
from ptd_engine.model import CausalLM, load_model
from ptd_engine.runner import EagerRunner, GraphRunner
from ptd_engine.runner.cuda_graphs import CudaGraphs
from ptd_engine.testing import tiny
from ptd_engine.testing.graph_twin import GraphTwin

CONTEXT = sizes([512], [64])[0]
TOKENS = sizes([120], [10])[0]
TREE = PTDConfig(width=4, depth=5, max_draft_nodes=30, max_candidate_nodes=33)
PROMPT = [5, 9, 11, 3, 9, 11, 3, 9]
MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "seed": 7},
    "filtered": {"temperature": 1.0, "top_k": 30, "top_p": 0.9, "seed": 3},
    "penalised": {"repetition_penalty": 1.2, "logprobs": 2},
}
KERNELS = sizes(["triton", "cuda", "torch"], ["torch"])

Load = Callable[..., CausalLM]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    shape = sizes(
        [{"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "head_dim": 64}],
        [{"num_hidden_layers": 1}],
    )[0]
    heads = sizes([(8, 2)], [(2, 1)])[0]
    shape |= {"num_attention_heads": heads[0], "num_key_value_heads": heads[1]}
    made = tiny.build("llama32", seed=3, max_position_embeddings=2048, **shape)
    path = tiny.save(made, tmp_path_factory.mktemp("graphs") / "model")

    def get(kernels: str, dtype: str) -> CausalLM:
        try:
            return load_model(
                path, dtype=dtype, device=DEVICE, kernels=kernels, max_seq_len=CONTEXT
            )
        except UnavailableError as error:
            pytest.skip(str(error))

    return get


def engine_of(
    model: CausalLM, drafter: str | PTDConfig = TREE, *, graphs: bool = True, **settings: Any
) -> Engine:
    made: _core.Drafter = make_drafter(drafter, device_type=DEVICE.type, eos_ids=())
    needs = made.needs()
    common: dict[str, Any] = {"max_seq_len": CONTEXT, "top_k": needs.top_k}
    common["max_nodes"] = 1 + needs.max_nodes
    runner: EagerRunner | GraphRunner
    if graphs:
        backend = CudaGraphs(DEVICE) if ON_GPU else GraphTwin()
        kv = (CONTEXT // 4, CONTEXT)
        runner = GraphRunner(model, backend, kv_buckets=kv, required=True, **common, **settings)
    else:
        runner = EagerRunner(model, **common)
    return Engine(runner, made, max_seq_len=CONTEXT, vocab_size=model.config.vocab_size)


@pytest.mark.parametrize("mode", sizes([*MODES], ["greedy", "penalised"]))
@pytest.mark.parametrize("dtype", sizes(["bfloat16", "float32"], ["float32"]))
@pytest.mark.parametrize("kernels", KERNELS)
def test_replayed_steps_are_those_that_run_op_by_op(
    load: Load, kernels: str, dtype: str, mode: str
) -> None:
    model = load(kernels, dtype)
    params = SamplingParams(max_new_tokens=TOKENS, **MODES[mode])
    got = finish(engine_of(model), PROMPT, params)
    if kernels == "triton":  # rows stand alone: the tree and the padding change no bit
        expected = finish(engine_of(model, "none", graphs=False), PROMPT, params)
        assert got.token_ids == expected.token_ids
    # The same shapes without graphs.
    alike = engine_of(model)
    alike.runner._required = False  # type: ignore[attr-defined]
    alike.runner._graphs.clear()  # type: ignore[attr-defined]
    alike.runner.failure = "as planted"  # type: ignore[attr-defined]
    again = finish(alike, PROMPT, params)
    assert again.token_ids == got.token_ids
    assert again.stats.graph_fallbacks == again.stats.steps
    stats = got.stats
    assert stats.graph_steps > 0 and stats.graph_fallbacks == 0
    assert stats.host_syncs == stats.steps * (2 if mode == "penalised" else 1)


@pytest.mark.skipif(not ON_GPU, reason="minutes if interpreted; tests/runner has a smaller one")
@pytest.mark.parametrize("mode", ["greedy", "filtered"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_drafting_under_graphs_equals_plain_decoding_under_graphs(
    load: Load, dtype: str, mode: str
) -> None:
    model = load("triton", dtype)
    params = SamplingParams(max_new_tokens=TOKENS, **MODES[mode])
    plain, drafted = (
        finish(engine_of(model, drafter), PROMPT, params) for drafter in ("none", TREE)
    )
    assert drafted.token_ids == plain.token_ids


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_warm_step_waits_once_and_allocates_nothing(load: Load, kernels: str) -> None:
    model = load(kernels, "bfloat16")
    engine = engine_of(model)
    assert engine.warmup() > 0
    params = SamplingParams(max_new_tokens=TOKENS)
    finish(engine, PROMPT, params)
    generation = engine.generate(PROMPT, params)
    next(generation)  # the prefill, and its copies
    if not ON_GPU:
        assert [*generation] and generation.stats.graph_steps == generation.stats.steps
        return
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")  # what waits for the device, but for the event, raises
    try:
        rest = [*generation]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert rest and torch.cuda.memory_stats()["allocation.all.allocated"] == before
    stats = generation.stats
    assert stats.graph_steps == stats.steps == stats.host_syncs


def test_lengths_that_rise_and_fall(load: Load) -> None:
    model = load(KERNELS[0], "bfloat16" if ON_GPU else "float32")
    engine, params = engine_of(model), SamplingParams(max_new_tokens=8)
    long = [3 + i * 7 % 80 for i in range(CONTEXT - 14)]
    outputs = [finish(engine, prompt, params).token_ids for prompt in (PROMPT, long, PROMPT)]
    assert outputs[0] == outputs[2]
    assert outputs[1] == finish(engine_of(model), long, params).token_ids


@pytest.mark.skipif(not ON_GPU, reason="only a GPU can refuse a capture")
def test_a_capture_that_waits_falls_back_and_leaves_the_device_whole(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(KERNELS[0], "bfloat16")
    params = SamplingParams(max_new_tokens=20)
    expected = finish(engine_of(model), PROMPT, params).token_ids
    engine = engine_of(model)
    runner = engine.runner
    assert isinstance(runner, GraphRunner)
    runner._required = False
    runner._graphs.clear()
    commit = runner.step.commit

    def looks(shape: Any) -> None:
        if int(runner.buffers.view(shape.rows).n_commit) >= 0:
            commit(shape)

    monkeypatch.setattr(runner.step, "commit", looks)
    got = finish(engine, PROMPT, params)
    assert got.token_ids == expected and runner.failure
    assert got.stats.graph_fallbacks == got.stats.steps
    monkeypatch.undo()
    assert finish(engine_of(model), PROMPT, params).token_ids == expected
