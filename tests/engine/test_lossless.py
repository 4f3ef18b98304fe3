"""Every drafter, family and sampling mode against plain decoding, token for token, in fp32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine.conftest import CONTEXT, PAPER_TREE, finish, make_engine

from ptd_engine.config import PTDConfig, SamplingParams
from ptd_engine.model import CausalLM, load_model

GREEDY = SamplingParams(max_new_tokens=90)
MODES = {
    "greedy": GREEDY,
    "sampled": SamplingParams(max_new_tokens=90, temperature=0.3, seed=7),
    "filtered": SamplingParams(
        max_new_tokens=90, temperature=0.7, top_k=20, top_p=0.9, min_p=0.02, seed=2**64 - 1
    ),
}
TREES = {
    "paper": PAPER_TREE,
    "cpu": "ptd",
    "chain": PTDConfig(width=1, depth=3),
    "wide": PTDConfig(width=8, depth=3, max_draft_nodes=40, max_candidate_nodes=20),
    "candidates capped": PTDConfig(max_candidate_nodes=3),
    "candidates off": PTDConfig(max_candidate_nodes=0),
    "top-k": PTDConfig(expansion="top-k", expansion_k=3),
    "top-p": PTDConfig(expansion="top-p", expansion_p=0.6, initialisation="context"),
    "chained": PTDConfig(layout="chained", recycle_verified=True),
    "prompt lookup": "prompt-lookup",
    "token recycling": "token-recycling:max_candidate_nodes=16",
    "hybrid": "hybrid:max_candidate_nodes=16",
    "hybrid with drafts": "hybrid:max_draft_nodes=8,prompt_outputs=true",
    "suffix": "suffix:max_candidate_nodes=16,index_tokens=200",
    "lookahead": "lookahead:level=4,window=5,guesses=5",
    "lookahead faithful": "lookahead:level=4,window=5,guesses=5,faithful=true,prompt_ngrams=true",
    "self-draft": "self-draft:branches=4,length=5",
}
PROMPTS = ([5, 9, 11, 3, 9, 11, 3, 9], [42], list(range(3, 33)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tree", TREES)
def test_every_tree_and_mode_equals_plain(tiny_llama: CausalLM, tree: str, mode: str) -> None:
    plain, drafted = make_engine(tiny_llama, "none"), make_engine(tiny_llama, TREES[tree])
    for prompt in PROMPTS:
        expected = finish(plain, prompt, MODES[mode])
        got = finish(drafted, prompt, MODES[mode])
        assert got.token_ids == expected.token_ids
        assert got.finish_reason == expected.finish_reason
        assert expected.stats.steps == len(expected.token_ids)


@pytest.mark.parametrize("family", ["llama2", "llama32", "mistral", "qwen2", "qwen3"])
def test_every_family_equals_plain(tiny_dir: Callable[[str], Path], family: str) -> None:
    model = load_model(tiny_dir(family), dtype="float32", max_seq_len=CONTEXT)
    for params in (GREEDY, MODES["sampled"]):
        expected = finish(make_engine(model, "none"), PROMPTS[0], params)
        assert finish(make_engine(model), PROMPTS[0], params).token_ids == expected.token_ids


def test_drafts_are_accepted_over_many_branching_steps(tiny_llama: CausalLM) -> None:
    stats = finish(make_engine(tiny_llama), PROMPTS[0], GREEDY).stats
    assert stats.steps < stats.tokens
    assert sum(stats.acceptance_histogram[1:]) >= 3
    assert stats.mean_draft_nodes > 5


def test_node_buckets_and_prefill_chunks_change_nothing(tiny_llama: CausalLM) -> None:
    expected = finish(make_engine(tiny_llama, "none"), PROMPTS[2], GREEDY).token_ids
    padded = make_engine(tiny_llama, node_buckets=(1, 8, 32, 64, 160), prefill_chunk=7)
    assert finish(padded, PROMPTS[2], GREEDY).token_ids == expected


def test_the_torch_operations_equal_plain_too(tiny_dir: Callable[[str], Path]) -> None:
    model = load_model(tiny_dir("llama3"), dtype="float32", kernels="torch", max_seq_len=CONTEXT)
    for mode in MODES.values():
        expected = finish(make_engine(model, "none"), PROMPTS[0], mode).token_ids
        assert finish(make_engine(model), PROMPTS[0], mode).token_ids == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_differs_at_near_ties_only(
    tiny_dir: Callable[[str], Path], dtype: str
) -> None:
    # In half precision the torch backend rounds differently for other row counts. Where PTD leaves
    # plain decoding, plain's two best logits must lie within two units in the last place.
    model = load_model(tiny_dir("llama3"), dtype=dtype, kernels="torch", max_seq_len=CONTEXT)
    for prompt in PROMPTS:
        expected = finish(make_engine(model, "none"), prompt, GREEDY).token_ids
        got = finish(make_engine(model), prompt, GREEDY).token_ids
        if got == expected:
            continue
        position = next(i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b)
        plain = make_engine(model, "none")
        finish(plain, prompt, SamplingParams(max_new_tokens=position + 1))
        scale = plain.runner._logits[0].float().abs().max().item()  # type: ignore[attr-defined]
        ulp = torch.finfo(getattr(torch, dtype)).eps * scale
        assert plain.runner.top2_gap() <= 2 * ulp  # type: ignore[attr-defined]


def test_recursive_verification_is_greedy_where_one_token_has_all_the_mass(
    tiny_llama: CausalLM,
) -> None:
    expected = finish(make_engine(tiny_llama, "none"), PROMPTS[0], GREEDY).token_ids
    for params in (
        SamplingParams(max_new_tokens=90, verification="recursive"),
        SamplingParams(max_new_tokens=90, temperature=1.0, top_k=1, verification="recursive"),
    ):
        assert finish(make_engine(tiny_llama), PROMPTS[0], params).token_ids == expected


def test_recursive_verification_samples_reproducibly(tiny_llama: CausalLM) -> None:
    def sample(seed: int) -> list[int]:
        params = SamplingParams(
            max_new_tokens=40, temperature=1.0, seed=seed, verification="recursive"
        )
        return finish(make_engine(tiny_llama), PROMPTS[0], params).token_ids

    assert sample(1) == sample(1)
    assert len({tuple(sample(seed)) for seed in range(6)}) == 6


def test_seeds_decide_alone(tiny_llama: CausalLM) -> None:
    engine = make_engine(tiny_llama)

    def sample(seed: int) -> list[int]:
        params = SamplingParams(max_new_tokens=30, temperature=1.0, seed=seed)
        return finish(engine, PROMPTS[0], params).token_ids

    first = sample(7)
    assert len({tuple(sample(seed)) for seed in range(10)}) >= 8
    assert sample(7) == first
