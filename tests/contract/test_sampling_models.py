"""Processed requests of real (tiny) models: drafted and plain agree token for token.

In float32 with every backend; in bfloat16 with the native kernels, whose rows do not depend on each
other. And the padding of an output matrix.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from ptd_engine import LLM, SamplingParams, _core
from ptd_engine.model import CausalLM, load_model
from ptd_engine.outputs import GenerationOutput
from ptd_engine.runner import EagerRunner
from ptd_engine.testing import tiny
from ptd_engine.text import Tokenizer as TextTokenizer

from .logit_tables import PROMPT, drafters

VOCAB, TOKENS = 97, 90  # ids with a logit, and ids that stand for a token
PROCESSED: dict[str, Any] = {
    "max_new_tokens": 40,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.2,
    "logit_bias": {4: 1.0, 9: -2.0},
    "min_new_tokens": 30,
    "logprobs": 3,
}
LAWS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "seed": 7},
    "filtered": {"temperature": 1.0, "top_k": 30, "top_p": 0.9, "seed": 3},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tiny.build("llama3", seed=3)
    with torch.no_grad():  # the padding is as likely as it can be
        made.lm_head.weight[TOKENS:] *= 5
    return tiny.save(made, tmp_path_factory.mktemp("processed") / "model")


@pytest.fixture(scope="module", params=["torch float32", "cpu float32", "cpu bfloat16", "cpu int8"])
def model(request: pytest.FixtureRequest, directory: Path) -> CausalLM:
    kernels, dtype = request.param.split()
    return load_model(directory, dtype=dtype, kernels=kernels, max_seq_len=128)


def llm_over(model: CausalLM, drafter: Any) -> LLM:
    backend = Tokenizer(models.WordLevel({f"t{i}": i for i in range(TOKENS)}, unk_token="t0"))
    backend.decoder = decoders.Fuse()
    tokenizer = TextTokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), ())
    return LLM.from_model(model, tokenizer, max_seq_len=128, drafter=drafter)


def same(got: GenerationOutput, expected: GenerationOutput) -> None:
    assert (got.token_ids, got.finish_reason) == (expected.token_ids, expected.finish_reason)
    assert got.logprobs is not None and expected.logprobs is not None
    for ours, theirs in zip(got.logprobs, expected.logprobs, strict=True):
        assert ours.token_id == theirs.token_id
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert [value for _, value in ours.top] == pytest.approx(
            [value for _, value in theirs.top], abs=1e-4
        )
        assert max(token for token, _ in ours.top) < TOKENS


@pytest.mark.parametrize(("law", "own"), [*((law, False) for law in LAWS), ("sampled", True)])
def test_drafting_changes_nothing(model: CausalLM, law: str, own: bool) -> None:
    settings = {**PROCESSED, **LAWS[law]}
    if own:
        settings["logits_processor"] = lambda ids, x: x.index_fill(0, torch.tensor(ids[-2:]), -9.0)
    params = SamplingParams(**settings)
    expected = llm_over(model, "none").generate(PROMPT, params)
    assert len(expected.token_ids) >= 30 and max(expected.token_ids) < TOKENS
    accepted = 0
    for name in ("recycling", "blocks"):
        drafter = drafters(expected.token_ids, TOKENS)[name]
        got = llm_over(model, drafter).generate(PROMPT, params)
        same(got, expected)
        accepted += got.stats.accepted
    assert accepted > 15


def test_the_padding_never_shows(model: CausalLM) -> None:
    """The very model without its padded rows gives the same."""
    llm = llm_over(model, "ptd")
    for law in LAWS.values():
        output = llm.generate(PROMPT, SamplingParams(max_new_tokens=40, ignore_eos=True, **law))
        assert max(output.token_ids) < TOKENS
    assert isinstance(llm.engine.runner, EagerRunner)
    runner = EagerRunner(model, max_seq_len=128, max_nodes=4)
    assert (llm.engine.runner.vocab_limit, runner.vocab_limit) == (TOKENS, VOCAB)
    llm.engine.runner = runner  # without the limit it would show, and is refused
    llm.engine.drafter = drafters([])["none"]
    with pytest.raises(_core.InvalidArgument, match=rf"token of the output=.* to {TOKENS - 1}"):
        llm.generate(PROMPT, SamplingParams(max_new_tokens=40, ignore_eos=True))


@pytest.mark.parametrize("kernels", ["torch", "cpu"])
def test_logprobs_are_those_of_transformers(directory: Path, kernels: str) -> None:
    model = load_model(directory, dtype="float32", kernels=kernels, max_seq_len=128)
    params = SamplingParams(max_new_tokens=20, logprobs=4, temperature=0.9, repetition_penalty=1.3)
    output = llm_over(model, "ptd").generate(PROMPT, params)
    reference = tiny.build("llama3", seed=3)
    with torch.no_grad():
        reference.lm_head.weight[TOKENS:] *= 5
        logits = reference(torch.tensor([[*PROMPT, *output.token_ids]])).logits[0, :, :TOKENS]
    law = logits.double().log_softmax(-1)[len(PROMPT) - 1 :]
    assert output.logprobs is not None
    for row, entry in zip(law, output.logprobs, strict=False):
        assert entry.logprob == pytest.approx(row[entry.token_id].item(), abs=1e-4)
        assert [t for t, _ in entry.top] == row.topk(4).indices.tolist()
