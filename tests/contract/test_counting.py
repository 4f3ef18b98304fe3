"""What is counted, and that the cache, the counters and the output agree after every step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from reference.toy_models import hashed

from ptd_engine import PTDConfig, SamplingParams, _core
from ptd_engine.drafters import make_drafter
from ptd_engine.engine import Generation
from ptd_engine.testing.forced import FixedBlocks, FixedTrees, chain
from ptd_engine.testing.toy import NextToken, ToyRunner, scripted

from .conftest import OTHER, PROMPT, check_request, chunks_of, engine_of, toy

SCRIPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
WRONG = 60
FOLLOW = scripted(SCRIPT, prompt_len=1, other=OTHER)


def run(
    model: NextToken, drafter: _core.Drafter, budget: int, prompt: Sequence[int] = (PROMPT,)
) -> Generation:
    generation = engine_of(model, drafter).generate(prompt, SamplingParams(max_new_tokens=budget))
    for _ in generation:
        check_request(generation, len(prompt))
    return generation


def test_steps_that_accept_0_2_and_1_of_4() -> None:
    drafter = FixedTrees(
        chain(WRONG, WRONG, WRONG, WRONG), chain(6, 7, WRONG, WRONG), chain(9, WRONG, WRONG, WRONG)
    )
    generation = run(FOLLOW, drafter, 6)
    stats = generation.stats
    assert (stats.steps, stats.candidate_nodes, stats.accepted, stats.tokens) == (3, 12, 3, 6)
    assert stats.draft_nodes == 0
    assert stats.draft_acceptance_rate == 0.25
    assert stats.mean_acceptance_length == 2.0
    assert stats.acceptance_histogram == (1, 1, 1)


def test_nothing_drafted_counts_as_zero_and_never_as_nan() -> None:
    generation = run(FOLLOW, FixedTrees([]), 5)
    stats = generation.stats.as_dict()
    assert (stats["steps"], stats["tokens"], stats["candidate_nodes"]) == (5, 5, 0)
    assert stats["draft_acceptance_rate"] == stats["hit_rate"] == stats["accept_length"] == 0.0
    json.dumps(stats, allow_nan=False)


def test_the_papers_identity_holds_on_the_counters() -> None:
    drafter = make_drafter(PTDConfig(), device_type="cpu")
    generation = run(hashed(30, 7, 2), drafter, 150, [1, 2, 3])
    stats = generation.stats
    assert 0 < stats.hit_steps < stats.steps
    mixed = stats.hit_rate * stats.accept_length + (1 - stats.hit_rate)
    assert stats.decoding_efficiency == pytest.approx(mixed)


def test_tokens_are_counted_not_chunks() -> None:
    chunks, output = chunks_of(toy([*"abcdefghij"], (3,)), SamplingParams(max_new_tokens=10))
    assert [len(chunk.token_ids) for chunk in chunks] == [4, 4, 2, 0]
    assert output.usage.completion_tokens == output.stats.tokens == 10
    assert output.usage.total_tokens == 11
    assert output.stats.tokens_per_second == pytest.approx(10 / output.stats.total_time_s)


def test_the_finish_reason_comes_with_the_final_chunk_only(blocks: tuple[int, ...]) -> None:
    for pieces, reason in ((["a", "b"], "length"), (["a", "<eos>"], "stop")):
        chunks, _ = chunks_of(toy(pieces, blocks), SamplingParams(max_new_tokens=2))
        assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + [reason]


@pytest.mark.parametrize(
    "tree", [chain(WRONG), chain(5, 6, 7), chain(5, WRONG), chain(5, 6, 7, 8, 9)]
)
def test_the_cache_holds_all_but_the_pending_token(tree: list[tuple[int, int]]) -> None:
    # Nothing accepted, everything, a part: check_request compares after every step.
    generation = run(FOLLOW, FixedTrees(tree, chain(WRONG), tree), 12)
    assert generation.token_ids == [*SCRIPT, OTHER, OTHER]
    assert generation.kv_len == 1 + 12 - 1


def test_a_candidate_is_never_committed_unverified() -> None:
    generation = run(lambda context: 4, FixedTrees(chain(1)), 1, [1, 1, 1])
    assert generation.token_ids == [4]
    assert generation.stats.accepted == 0


def test_the_budget_of_candidates_is_the_one_asked_for() -> None:
    drafter = make_drafter(PTDConfig(width=2, max_candidate_nodes=7), device_type="cpu")
    engine = engine_of(hashed(12, 1, 3), drafter)
    generation = engine.generate([1, 2, 3], SamplingParams(max_new_tokens=200))
    verified = [0, *(generation.stats.candidate_nodes for _ in generation)]
    per_step = [after - before for before, after in pairwise(verified)]
    assert max(per_step) == 7 and per_step.count(7) > 20


@pytest.mark.parametrize("decoys", [[], [40], [40, 41, 42]])
def test_many_branching_steps_leave_the_cache_of_plain_decoding(decoys: list[int]) -> None:
    script = [3 + (7 * i * i) % 29 for i in range(60)]
    drafter = FixedBlocks(script, (3, 1, 4, 0, 5), decoys=decoys)
    engine = engine_of(scripted(script, prompt_len=1, other=OTHER), drafter)
    generation = engine.generate([PROMPT], SamplingParams(max_new_tokens=60))
    runner = engine.runner
    assert isinstance(runner, ToyRunner)
    steps = 0
    for step in generation:
        steps += 1
        done = runner.plan.prefix_len
        assert runner.kv[:done].tolist() == [PROMPT, *generation.token_ids][:done]
        assert step.accepted == min((3, 1, 4, 0, 5)[(steps - 1) % 5], len(step.token_ids))
    assert generation.token_ids == script
    assert steps >= 15
