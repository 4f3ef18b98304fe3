"""max_new_tokens and the context limit, whatever a step would accept."""

from __future__ import annotations

import pytest

from ptd_engine import ConfigError, PromptError, SamplingParams
from ptd_engine.testing.forced import FixedBlocks, FixedTrees
from ptd_engine.testing.toy import ToyRunner, scripted

from .conftest import EOS, OTHER, chunks_of, engine_of, ids_of, toy

LETTERS = [*"abcdefghijkl"]


@pytest.mark.parametrize("budget", range(10))
def test_exactly_max_new_tokens(budget: int, blocks: tuple[int, ...]) -> None:
    llm = toy(LETTERS, blocks)
    chunks, output = chunks_of(llm, SamplingParams(max_new_tokens=budget))
    assert output.token_ids == ids_of(LETTERS)[:budget]
    assert output.text == "abcdefghijkl"[:budget]
    assert output.finish_reason == "length"
    assert output.stats.accepted <= budget
    runner = llm.engine.runner
    assert isinstance(runner, ToyRunner)
    if budget == 0:
        assert (runner.prefills, runner.steps, len(chunks)) == (0, 0, 1)


@pytest.mark.parametrize(("budget", "reason"), [(2, "length"), (3, "stop"), (4, "stop")])
def test_an_eos_as_the_last_allowed_token_is_a_stop(
    budget: int, reason: str, blocks: tuple[int, ...]
) -> None:
    llm = toy(["a", "b", "<eos>", "c"], blocks)
    assert chunks_of(llm, SamplingParams(max_new_tokens=budget))[1].finish_reason == reason


@pytest.mark.parametrize("prompt_len", [1, 15, 24, 30, 31])
@pytest.mark.parametrize("budget", [None, 1000])
def test_generates_exactly_up_to_the_context_limit(
    prompt_len: int, budget: int | None, blocks: tuple[int, ...]
) -> None:
    # The toy runner asserts that no row of a step has a position beyond the context.
    script = [(3 + 5 * i) % 17 for i in range(40)]
    wide = [(token, parent) for parent in (-1, 3) for token in range(8)]
    for drafter in (FixedBlocks(script, blocks, decoys=range(18, 24)), FixedTrees(wide)):
        model = scripted(script, prompt_len=prompt_len, other=OTHER)
        engine = engine_of(model, drafter, max_seq_len=32)
        generation = engine.generate([7] * prompt_len, SamplingParams(max_new_tokens=budget))
        list(generation)
        assert generation.token_ids == script[: 32 - prompt_len]
        assert generation.finish_reason == "length"
        assert generation.kv_len == 31


@pytest.mark.parametrize("prompt_len", [32, 33])
def test_a_prompt_that_fills_the_context_is_refused(prompt_len: int) -> None:
    llm = toy(["a"], max_seq_len=32)
    with pytest.raises(PromptError, match=f"{prompt_len} tokens; the limit is 31"):
        llm.generate([0] * prompt_len)
    with pytest.raises(PromptError, match="limit is 31"):  # whatever was to follow
        llm.generate([0] * prompt_len, SamplingParams(max_new_tokens=0))
    assert llm.generate([0], SamplingParams(max_new_tokens=1)).text == "a"


def test_no_budget_ends_at_the_eos_or_at_the_context(blocks: tuple[int, ...]) -> None:
    no_budget = SamplingParams(max_new_tokens=None)
    stopped = chunks_of(toy(["a", "<eos>"], blocks), no_budget)[1]
    assert (stopped.token_ids[-1], stopped.finish_reason) == (EOS, "stop")
    full = chunks_of(toy(["a", "b"], blocks, max_seq_len=200), no_budget)[1]
    assert (len(full.token_ids), full.finish_reason) == (199, "length")


@pytest.mark.parametrize("budget", [None, 1000])
def test_a_least_length_beyond_the_room_is_refused(budget: int | None) -> None:
    llm = toy(["a", "<eos>"], max_seq_len=32)
    wanted = SamplingParams(min_new_tokens=9, max_new_tokens=budget)
    with pytest.raises(ConfigError, match=r"min_new_tokens=9 .*at most 8, .*24 prompt tokens.*32"):
        llm.engine.generate([0] * 24, wanted)
    engine = engine_of(lambda context: OTHER, FixedTrees([]), max_seq_len=32)
    least = SamplingParams(min_new_tokens=8, max_new_tokens=budget)
    generation = engine.generate([0] * 24, least)  # exactly the room; nothing ends it, so no rules
    assert sum(len(step.token_ids) for step in generation) == 8
    assert llm.generate([0], SamplingParams(max_new_tokens=1)).text == "a"
