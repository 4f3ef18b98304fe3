"""Prefix reuse on models: the same tokens as a fresh engine and, with the CPU kernels, the same
cache bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine.conftest import CONTEXT, finish, make_engine

from ptd_engine.config import SamplingParams
from ptd_engine.engine import Engine
from ptd_engine.model import CausalLM, load_model
from ptd_engine.runner import EagerRunner
from ptd_engine.testing import tiny

MODES = {
    "greedy": SamplingParams(max_new_tokens=17),
    "sampled": SamplingParams(max_new_tokens=17, temperature=0.8, seed=7),
}


def cached(engine: Engine, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    assert isinstance(engine.runner, EagerRunner)
    return engine.runner.cache.k[:, :, :rows], engine.runner.cache.v[:, :, :rows]


def chat(model: CausalLM, params: SamplingParams, *, exact: bool, turns: int = 4) -> list[int]:
    """A chat on one engine, each turn compared with a fresh engine; tokens reused in each."""
    engine = make_engine(model, reuse_prefix=True)
    prompt, reused = list(range(5, 15)), list[int]()
    for turn in range(turns):
        got, fresh = finish(engine, prompt, params), make_engine(model)
        expected = finish(fresh, prompt, params)
        assert got.token_ids == expected.token_ids
        assert got.stats.acceptance_histogram == expected.stats.acceptance_histogram
        if exact:
            rows = len(prompt) + 1
            for ours, theirs in zip(cached(engine, rows), cached(fresh, rows), strict=True):
                assert torch.equal(ours, theirs)
        reused.append(got.stats.reused_tokens)
        prompt = [*prompt, *got.token_ids, 3 + turn]
    return reused


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_chat_equals_recomputation_bit_for_bit(
    tiny_dir: Callable[[str], Path], dtype: str, mode: str
) -> None:
    model = load_model(tiny_dir("llama3"), dtype=dtype, kernels="cpu", max_seq_len=CONTEXT)
    reused = chat(model, MODES[mode], exact=True)
    assert reused[0] == 0 and all(count >= 10 + 12 * i for i, count in enumerate(reused) if i)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_chat_equals_recomputation_with_the_torch_operations(
    tiny_dir: Callable[[str], Path], family: str
) -> None:
    model = load_model(tiny_dir(family), dtype="float32", kernels="torch", max_seq_len=CONTEXT)
    assert chat(model, MODES["greedy"], exact=False)[-1] > 30


def test_a_rotation_that_depends_on_the_prompts_length(tmp_path: Path) -> None:
    rope = {"max_position_embeddings": 32, "rope_parameters": tiny.ROPES["dynamic"]}
    path = tiny.save(tiny.build("llama3", seed=3, **rope), tmp_path / "dynamic")
    model = load_model(path, dtype="float32", kernels="cpu", max_seq_len=CONTEXT)
    # Prompts of 10, 28, 46 and 64 tokens: within 32 the table stays as it is, beyond it does not.
    reused = chat(model, MODES["greedy"], exact=True)
    assert reused[0] == 0 and reused[1] > 20 and reused[2:] == [0, 0]
    engine = make_engine(model, reuse_prefix=True)
    long = list(range(5, 45))
    assert [finish(engine, long, MODES["greedy"]).stats.reused_tokens for _ in range(2)] == [0, 39]
    fresh = make_engine(model)
    finish(fresh, long, MODES["greedy"])
    assert torch.equal(cached(engine, 40)[0], cached(fresh, 40)[0])


def test_small_chunks_behind_a_reused_prefix(tiny_llama: CausalLM) -> None:
    engine = make_engine(tiny_llama, reuse_prefix=True, prefill_chunk=7)
    first = finish(engine, list(range(5, 15)), MODES["greedy"])
    prompt = [*range(5, 15), *first.token_ids, *range(40, 60)]
    fresh = make_engine(tiny_llama)
    got = finish(engine, prompt, MODES["greedy"])
    assert got.token_ids == finish(fresh, prompt, MODES["greedy"]).token_ids
    assert got.stats.reused_tokens >= 20


def test_behind_a_cancelled_request_the_shared_prefix_is_the_committed_one(
    tiny_llama: CausalLM,
) -> None:
    engine = make_engine(tiny_llama, reuse_prefix=True)
    for steps in range(1, 7):
        cancelled = engine.generate(list(range(5, 15)), MODES["greedy"])
        for _ in range(steps):
            next(cancelled)
        cancelled.close()
        prompt = [*range(5, 15), *cancelled.token_ids, 60, 61]
        fresh = make_engine(tiny_llama)
        got = finish(engine, prompt, MODES["greedy"])
        assert got.token_ids == finish(fresh, prompt, MODES["greedy"]).token_ids
        for ours, theirs in zip(
            cached(engine, len(prompt)), cached(fresh, len(prompt)), strict=True
        ):
            assert torch.equal(ours, theirs)
        assert got.stats.reused_tokens >= 9
