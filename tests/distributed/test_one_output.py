"""Two ranks write what one rank writes, token for token, in float32."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from ptd_engine import LLM, SamplingParams
from ptd_engine.engine import Engine
from ptd_engine.model import load_model
from ptd_engine.outputs import TokenLogprobs
from ptd_engine.tensor_parallel import TensorParallel

TOKENS = 16
PROMPTS = ([5, 9, 33, 5, 9], [17], [*range(40, 75)])
ASKED = {
    "greedy": SamplingParams(max_new_tokens=TOKENS),
    "sampled": SamplingParams(max_new_tokens=TOKENS, temperature=1.0, top_p=0.95, seed=4),
    "processed": SamplingParams(
        max_new_tokens=TOKENS,
        temperature=0.8,
        seed=5,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        logit_bias={7: -1.0},
        logprobs=2,
    ),
}


def run(
    engine: Engine, prompt: list[int], params: SamplingParams
) -> tuple[list[int], list[TokenLogprobs]]:
    generation = engine.generate(prompt, params)
    logprobs = [entry for step in generation for entry in step.logprobs or []]
    return generation.token_ids, logprobs


@pytest.mark.parametrize(
    ("family", "kernels", "drafters"),
    [
        ("llama3", "torch", ("none", "ptd", "hybrid")),  # grouped heads, its own output matrix
        ("llama32", "auto", ("hybrid",)),  # tied embeddings
        ("llama_bias", "auto", ("ptd",)),  # biases behind the sums over ranks
    ],
)
def test_requests_in_a_row(
    family: str,
    kernels: str,
    drafters: tuple[str, ...],
    model_dir: Callable[[str], Path],
    parallel: Callable[..., AbstractContextManager[TensorParallel]],
    engine_over: Callable[[Any, str], Engine],
) -> None:
    alone = load_model(model_dir(family), dtype="float32", kernels=kernels, max_seq_len=128)
    with parallel(family, kernels) as ranks:
        for drafter in drafters:
            one, two = engine_over(alone, drafter), engine_over(ranks, drafter)
            for prompt in PROMPTS:
                for params in ASKED.values():
                    expected, likely = run(one, prompt, params)
                    found, as_likely = run(two, prompt, params)
                    assert found == expected and len(found) == TOKENS
                    assert [entry.logprob for entry in as_likely] == pytest.approx(
                        [entry.logprob for entry in likely], abs=1e-3
                    )


def test_what_asks_for_logits_again(
    parallel: Callable[..., AbstractContextManager[TensorParallel]],
    engine_over: Callable[[Any, str], Engine],
    model_dir: Callable[[str], Path],
) -> None:
    alone = load_model(model_dir("llama3"), dtype="float32", kernels="torch", max_seq_len=128)
    recursive = SamplingParams(
        max_new_tokens=TOKENS, temperature=0.9, seed=2, verification="recursive"
    )
    own = SamplingParams(
        max_new_tokens=TOKENS, temperature=0.9, seed=2, logits_processor=lambda _ids, row: row * 0.5
    )
    with parallel("llama3") as ranks:
        one, two = engine_over(alone, "ptd"), engine_over(ranks, "ptd")
        for params in (recursive, own):
            assert run(two, PROMPTS[2], params) == run(one, PROMPTS[2], params)


def test_text_in_text_out(model_dir: Callable[[str], Path]) -> None:
    path, params = str(model_dir("llama3")), SamplingParams(max_new_tokens=TOKENS, temperature=0.7)
    options: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_seq_len": 128}
    expected = LLM.from_pretrained(path, **options).generate("Once upon", params)
    with LLM.from_pretrained(path, tensor_parallel=2, **options) as llm:
        assert llm.generate("Once upon", params).token_ids == expected.token_ids
        plain = llm.with_drafter("none")
        with plain.stream("Once upon", params) as chunks:
            first = next(chunks)  # the rest of this stream is left out
        assert first.token_ids == expected.token_ids[:1]
        for engine in (plain, llm):  # in turns, each with a cache of its own
            assert engine.generate("Once upon", params).text == expected.text
    llm.close()  # once more
