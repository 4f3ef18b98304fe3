from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ptd_engine import LLM, SamplingParams
from ptd_engine.cli.verify import _plain_buckets
from ptd_engine.runner import EagerRunner

from .conftest import CONTEXT, Run

Write = Callable[[str, str], Path]
STATS = {
    "decoding_efficiency",
    "hit_rate",
    "accept_length",
    "mean_draft_nodes",
    "mean_candidate_nodes",
}


def last_line(stdout: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    return document


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--width", 4, "--depth", 6, "--dtype", "float32"),
        ("--temperature", 0.8, "--top-k", 20, "--seed", 11),
        ("--drafter", "none"),
    ],
)
def test_identical_outputs(
    run: Run, chat_model: str, write: Write, options: tuple[object, ...]
) -> None:
    files = write("a.txt", "One\nTwo\n"), write("b.jsonl", '{"id": "c", "prompt": "Three"}\n')
    result = run(
        "verify", chat_model, "--prompts", files[0], "--prompts", files[1],
        "--max-new-tokens", 20, *options,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = last_line(result.stdout)
    assert set(found) >= STATS | {"tokens"}
    assert (found["prompts"], found["mismatches"], found["divergences"]) == (3, 0, [])
    assert (found["mismatch_rate"], found["plain_rows"]) == (0.0, None)
    assert set(found["graphs"].values()) == {0}  # there are none on a CPU
    assert found["model"] == chat_model
    assert (found["dtype"], found["errors"]) == ("float32", [])
    given = dict(zip(options[::2], options[1::2], strict=True))
    assert found["temperature"] == given.get("--temperature", 0.0)
    assert found["seed"] == given.get("--seed", 0)
    shaped = "--width" in given
    assert found["drafter"] == given.get("--drafter", "ptd" if shaped else "hybrid")
    assert (found["mean_draft_nodes"] > 0) == shaped
    if found["drafter"] == "none":
        assert found["decoding_efficiency"] == 1.0
    assert result.stdout.count(" yes ") == 3


@pytest.fixture
def wrong_second_step(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The drafted side's second step gives another token; undone by the fixture's undo()."""
    wait, calls = EagerRunner.wait, []

    def wrong(self: EagerRunner) -> Any:
        output = wait(self)
        if self.buffers.max_nodes > 1:  # the drafted side; plain decoding has one row
            calls.append(1)
            if len(calls) == 2:
                output[:, 0] = (output[:, 0] + 1) % self.model.config.vocab_size
        return output

    monkeypatch.setattr(EagerRunner, "wait", wrong)
    return monkeypatch


def test_a_mismatch_is_located_and_explained(
    run: Run, chat_model: str, write: Write, wrong_second_step: pytest.MonkeyPatch
) -> None:
    result = run(
        "verify", chat_model, "--prompts", write("a.txt", "One\n"), "--max-new-tokens", 9,
        "--raw", "--drafter", "ptd",
    )  # fmt: skip
    assert result.exit_code == 1
    found = last_line(result.stdout)
    assert found["mismatches"] == 1
    assert found["mismatch_rate"] == 1 / found["prompts"]
    (divergence,) = found["divergences"]
    # The first step has an empty pool and so makes one token; the second is wrong.
    assert (divergence["id"], divergence["position"]) == ("a.txt:1", 1)
    assert "no, at 1" in result.stdout

    wrong_second_step.undo()
    plain = LLM.from_pretrained(chat_model, drafter="none")
    ids = plain.encode("One")
    first = plain.generate(ids, SamplingParams(max_new_tokens=1)).token_ids
    auto: Any = AutoModelForCausalLM
    reference = auto.from_pretrained(chat_model, dtype=torch.float32)
    with torch.no_grad():
        logits = reference(torch.tensor([ids + first])).logits[0, -1]
    best = logits.topk(2).values
    np.testing.assert_allclose(divergence["top2_gap"], float(best[0] - best[1]), rtol=1e-3)


@pytest.mark.usefixtures("wrong_second_step")
def test_a_sampled_mismatch_has_no_gap(run: Run, chat_model: str, write: Write) -> None:
    result = run(
        "verify", chat_model, "--prompts", write("a.txt", "One\n"), "--max-new-tokens", 9,
        "--raw", "--temperature", 0.8, "--drafter", "ptd",
    )  # fmt: skip
    assert result.exit_code == 1
    (divergence,) = last_line(result.stdout)["divergences"]
    assert divergence == {"id": "a.txt:1", "position": 1, "top2_gap": None}


def test_a_prompt_that_cannot_be_served(run: Run, chat_model: str, write: Write) -> None:
    path = write("a.txt", "x" * CONTEXT + "\nTwo\n")
    result = run("verify", chat_model, "--prompts", path, "--max-new-tokens", 4)
    assert result.exit_code == 1
    found = last_line(result.stdout)
    assert (found["prompts"], found["mismatches"]) == (1, 0)
    assert [error["id"] for error in found["errors"]] == ["a.txt:1"]


def test_mistakes(run: Run, chat_model: str, write: Write) -> None:
    assert run("verify", chat_model).exit_code == 2
    empty = run("verify", chat_model, "--prompts", write("a.txt", ""))
    assert empty.exit_code == 2
    assert "holds no prompt" in empty.stderr
    prompts = write("b.txt", "One\n")
    unknown = run("verify", chat_model, "--prompts", prompts, "--graphs", "on")
    assert unknown.exit_code == 2 and "graphs='on'" in unknown.stderr
    demanded = run(
        "verify", chat_model, "--prompts", prompts, "--graphs", "require", "--device", "cpu"
    )
    assert demanded.exit_code != 0 and "CUDA graphs need a GPU" in demanded.stderr


@pytest.mark.parametrize(
    ("linear", "attention", "buckets", "expected"),
    [
        ("torch", "cuda", (1, 8, 40), [40]),  # cuBLAS: the sums depend on the number of rows
        ("triton", "triton", (1, 8, 40), None),
        ("cpu", "cpu", (), None),
        ("torch", "torch", (), None),  # exact shapes: there is no padding to match
    ],
)
def test_plain_decoding_is_padded_where_rows_do_not_stand_alone(
    linear: str, attention: str, buckets: tuple[int, ...], expected: list[int] | None
) -> None:
    choices = [
        SimpleNamespace(op="linear", backend=linear),
        SimpleNamespace(op="tree_attention", backend=attention),
    ]
    llm: Any = SimpleNamespace(
        model=SimpleNamespace(ops=SimpleNamespace(describe=lambda: choices)),
        engine=SimpleNamespace(runner=SimpleNamespace(node_buckets=buckets)),
    )
    assert _plain_buckets(llm) == expected


def test_penalties_and_the_least_length_are_compared_too(
    run: Run, chat_model: str, write: Write
) -> None:
    options = ("--repetition-penalty", 1.3, "--frequency-penalty", 0.2, "--min-new-tokens", 15)
    result = run(
        "verify", chat_model, "--prompts", write("a.txt", "One\n"), "--max-new-tokens", 20, *options
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert last_line(result.stdout)["tokens"] >= 15


def test_the_gap_of_a_mismatch_is_that_of_the_processed_logits(
    run: Run, chat_model: str, write: Write, wrong_second_step: pytest.MonkeyPatch
) -> None:
    path = write("a.txt", "One\n")
    shared = ("--prompts", path, "--max-new-tokens", 9, "--raw", "--min-new-tokens", 9)
    shared_options = (*shared, "--drafter", "ptd")
    result = run("verify", chat_model, *shared_options, "--presence-penalty", 2.0)
    (divergence,) = last_line(result.stdout)["divergences"]
    assert divergence["position"] == 1
    wrong_second_step.undo()
    plain = LLM.from_pretrained(chat_model, drafter="none")
    ids = plain.encode("One")
    all_ids = plain.engine.vocab_size
    params = SamplingParams(
        max_new_tokens=2, min_new_tokens=2, presence_penalty=2.0, logprobs=all_ids
    )
    output = plain.generate(ids, params)
    assert output.logprobs is not None
    law = dict(output.logprobs[1].top)
    law.pop(plain.engine.eos_token_ids[0])
    law[output.token_ids[0]] -= 2.0
    best = sorted(law.values(), reverse=True)
    np.testing.assert_allclose(divergence["top2_gap"], best[0] - best[1], rtol=1e-3, atol=1e-5)
