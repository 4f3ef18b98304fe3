"""A small slice of `ptd-engine verify`: the real model, real prompts, fp32, token for token."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from engine.conftest import PAPER_TREE, finish, make_engine
from rich.console import Console

from ptd_engine import text
from ptd_engine.config import PTDConfig, SamplingParams
from ptd_engine.drafter_configs import HybridConfig
from ptd_engine.llm import LLM
from ptd_engine.model import CausalLM

pytestmark = pytest.mark.demo

OWN_PROMPTS = (
    "List the numbers from one to twenty, one a line.",
    "Write a Python function that adds two numbers, and three tests for it.",
)
TREES: dict[str, str | PTDConfig] = {"cpu default": "ptd", "paper": PAPER_TREE}


@pytest.mark.parametrize("tree", TREES)
def test_ptd_equals_plain(demo_model: CausalLM, demo_tokenizer: text.Tokenizer, tree: str) -> None:
    eos = demo_tokenizer.eos_token_ids
    plain = make_engine(demo_model, "none", max_seq_len=512, eos=eos)
    drafted = make_engine(demo_model, TREES[tree], max_seq_len=512, eos=eos)
    stats = []
    for content, params in (
        (OWN_PROMPTS[0], SamplingParams(max_new_tokens=96)),
        (OWN_PROMPTS[1], SamplingParams(max_new_tokens=40, temperature=0.8, top_p=0.95, seed=11)),
    ):
        prompt = demo_tokenizer.apply_chat_template([{"role": "user", "content": content}])
        expected = finish(plain, prompt, params)
        got = finish(drafted, prompt, params)
        assert got.token_ids == expected.token_ids
        stats.append(got.stats)
    assert stats[0].decoding_efficiency > 1.2


def test_prompt_sets_slice(
    demo_model: CausalLM, demo_tokenizer: text.Tokenizer, shared_data: Path
) -> None:
    eos = demo_tokenizer.eos_token_ids
    plain = make_engine(demo_model, "none", max_seq_len=512, eos=eos)
    drafted = make_engine(demo_model, max_seq_len=512, eos=eos)
    for name in ("mt_bench", "gsm8k_100", "humaneval", "mbpp_100"):
        line = (shared_data / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[1]
        message = {"role": "user", "content": json.loads(line)["turns"][0]}
        prompt = demo_tokenizer.apply_chat_template([message])
        params = SamplingParams(max_new_tokens=32)
        assert finish(drafted, prompt, params).token_ids == finish(plain, prompt, params).token_ids


def test_api_text_streams_and_chats(demo_model: CausalLM, demo_tokenizer: text.Tokenizer) -> None:
    llm = LLM.from_model(demo_model, demo_tokenizer, max_seq_len=256)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    answer = llm.chat(messages, SamplingParams(max_new_tokens=40))
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"
    assert answer.token_ids[-1] in demo_tokenizer.eos_token_ids
    assert "<|im_end|>" not in answer.text
    chunks = list(llm.stream_chat(messages, SamplingParams(max_new_tokens=40)))
    assert "".join(chunk.text for chunk in chunks) == answer.text
    assert [t for chunk in chunks for t in chunk.token_ids] == answer.token_ids
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    final = chunks[-1].output
    assert final is not None
    assert final.usage.completion_tokens == len(answer.token_ids) == final.stats.tokens
    plain = llm.with_drafter("none").generate("The sky is", SamplingParams(max_new_tokens=12))
    assert plain.text == llm.generate("The sky is", SamplingParams(max_new_tokens=12)).text


def test_a_context_beyond_the_models_own_is_warned_about(
    demo_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    LLM.from_pretrained(str(demo_path), max_seq_len=8200)
    assert "max_seq_len=8200 exceeds the 8192 positions" in caplog.text


def test_the_default_explains_its_trees(
    demo_model: CausalLM, demo_tokenizer: text.Tokenizer
) -> None:
    config = HybridConfig(max_candidate_nodes=8, auto_budget=False)
    llm = LLM.from_model(demo_model, demo_tokenizer, max_seq_len=256, drafter=config)
    messages = [{"role": "user", "content": OWN_PROMPTS[0]}]
    trees = []
    for chunk in llm.stream_chat(messages, SamplingParams(max_new_tokens=40)):
        if chunk.accepted:
            console = Console(file=io.StringIO(), width=200)
            llm.drafter.explain(console=console)
            trees.append(console.file.getvalue())  # type: ignore[attr-defined]
    assert trees and all(tree.startswith("root '") and "✓" in tree for tree in trees)
    assert any("token" in tree for tree in trees)
