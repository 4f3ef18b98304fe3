"""Where a request ends, and what is counted, in the core alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
from reference.toy_models import hashed
from session_driver import FixedTrees, ToyRunner, chain, generate, run

from ptd_engine._core import InvalidArgument, NonFiniteLogits, PTDDrafter, Session

CHAIN = {4: 5, 5: 6, 6: 2, 2: 7, 7: 8, 8: 9, 9: 10, 10: 11, 11: 12, 12: 13, 13: 4}


def follow(context: list[int]) -> int:
    return CHAIN.get(context[-1], 0)


def forced(prompt: list[int], *trees: list[tuple[int, int]], **kwargs: object) -> Session:
    options = {"max_seq_len": 512, "max_new_tokens": 40, **kwargs}
    return Session(prompt, FixedTrees(*trees), **options)


def test_output_ends_at_an_eos_accepted_inside_a_block() -> None:
    session = forced([4], chain(5, 6, 2, 7), stop_ids=[2])
    streamed = list(run(session, [4], follow))
    assert streamed == [[5, 6, 2]]
    assert session.token_ids == [5, 6, 2]
    assert session.finish_reason == "stop"
    assert session.kv_len == 1 + 2


@pytest.mark.parametrize("drafter", ["forced", "ptd"])
def test_every_token_in_turn_is_declared_to_be_the_eos(drafter: str) -> None:
    model, prompt = hashed(40, 3, 1), [1, 2, 3]
    plain: list[int] = []
    while len(plain) < 30:
        plain.append(model([*prompt, *plain]))
    for eos in sorted(set(plain)):
        chosen = PTDDrafter() if drafter == "ptd" else FixedTrees(chain(*plain[:9]))
        session = Session(prompt, chosen, max_seq_len=99, max_new_tokens=30, stop_ids=[eos])
        end = plain.index(eos) + 1
        assert generate(session, prompt, model) == plain[:end]
        assert session.finish_reason == "stop"
        assert session.kv_len == len(prompt) + end - 1


@pytest.mark.parametrize("n", range(10))
def test_never_more_than_max_new_tokens(n: int) -> None:
    session = forced([4], chain(5, 6, 2, 7, 8, 9, 10, 11), max_new_tokens=n)
    calls: list[int] = []

    def counted(context: list[int]) -> int:
        calls.append(len(context))
        return follow(context)

    assert generate(session, [4], counted) == [5, 6, 2, 7, 8, 9, 10, 11, 12][:n]
    assert session.finish_reason == "length"
    assert session.stats["steps"] == bool(calls) == (n > 0)


def test_an_eos_as_the_last_allowed_token_is_a_stop() -> None:
    session = forced([4], chain(5, 6, 2), max_new_tokens=3, stop_ids=[2])
    assert generate(session, [4], follow) == [5, 6, 2]
    assert session.finish_reason == "stop"


@pytest.mark.parametrize("prompt_len", range(1, 32))
@pytest.mark.parametrize("drafter", ["forced", "ptd"])
def test_generates_exactly_up_to_the_context_limit(prompt_len: int, drafter: str) -> None:
    model = hashed(6, 1, 1)
    prompt = [(7 * i) % 6 for i in range(prompt_len)]
    plain = list(prompt)
    while len(plain) < 32:
        plain.append(model(plain))
    wide = [(token, parent) for parent in (-1, 0, 6) for token in range(6)]
    chosen = FixedTrees(wide) if drafter == "forced" else PTDDrafter(width=4, depth=6)
    session = Session(prompt, chosen, max_seq_len=32, max_new_tokens=1000)
    runner = ToyRunner(session, prompt, capacity=32 + 256)
    while not session.finished:
        runner.step(model)
        assert max(runner.plan.positions) <= 31
        assert runner.plan.prefix_len <= 31
    assert session.token_ids == plain[prompt_len:]
    assert session.finish_reason == "length"


@pytest.mark.parametrize("prompt_len", [32, 33, 100])
def test_a_prompt_that_fills_the_context_is_refused(prompt_len: int) -> None:
    with pytest.raises(InvalidArgument, match=f"{prompt_len}.*at most 31"):
        forced([1] * prompt_len, chain(1), max_seq_len=32)


def test_empty_prompts_and_negative_limits_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="prompt"):
        forced([], chain(1))
    with pytest.raises(InvalidArgument, match="max_new_tokens=-1"):
        forced([1], chain(1), max_new_tokens=-1)


def test_counters_take_the_emitted_tokens_only() -> None:
    session = forced([4], chain(5, 6, 2, 7, 8), stop_ids=[2])
    generate(session, [4], follow)
    stats = session.stats
    assert stats["tokens"] == len(session.token_ids) == 3
    assert stats["accepted"] == 3
    assert stats["hit_tokens"] == 3
    assert stats["accepted_histogram"][:5] == [0, 0, 0, 1, 0]
    short = forced([4], chain(5, 6, 2, 7, 8), max_new_tokens=2)
    generate(short, [4], follow)
    assert (short.stats["tokens"], short.stats["accepted"]) == (2, 2)


def test_a_rejected_eos_draft_does_not_end_the_request() -> None:
    session = forced([4], [(2, -1), (5, -1)], chain(99), stop_ids=[2])
    steps = run(session, [4], follow)
    assert next(steps) == [5, 6]
    assert not session.finished
    assert next(steps) == [2]
    assert session.finish_reason == "stop"


def test_an_eos_drafted_by_ptd_does_not_end_the_request() -> None:
    """Draft rows meet an EOS long before the output does."""

    def model(context: list[int]) -> int:
        return 2 if len(context) % 7 == 0 or context[-1] == 3 else 4 + len(context) % 3

    for seed in range(20):
        prompt = [5, 3, 6, 4, 5, 6, 5, 4]
        drafter = PTDDrafter(seed=seed, eos_ids=[2])
        session = Session(prompt, drafter, max_seq_len=99, stop_ids=[2])
        assert generate(session, prompt, model) == [6, 4, 5, 6, 4, 5, 2]
        assert session.finish_reason == "stop"


@pytest.mark.parametrize("tree", [chain(9), chain(5, 6, 2), chain(5, 99)])
def test_the_cache_holds_all_but_the_pending_token(tree: list[tuple[int, int]]) -> None:
    session = forced([13, 4], tree, chain(1), tree)
    assert session.kv_len == 1
    for _ in run(session, [13, 4], follow):  # run() checks kv_len and the cache at each step
        assert session.kv_len == 2 + len(session.token_ids) - 1
    assert len(session.token_ids) == 40


def test_a_branching_path_moves_its_rows_in_place() -> None:
    # Accepted rows 2, 5, 6: sources overlap the destinations 1, 2, 3.
    tree = [(9, -1), (5, -1), (8, 0), (9, 1), (6, 1), (2, 4)]
    session = forced([4], tree, chain(1), tree)
    steps = run(session, [4], follow)
    assert next(steps) == [5, 6, 2, 7]
    assert next(steps) == [8]
    assert session.kv_len == 5


def test_a_draft_is_not_accepted_unverified() -> None:
    session = forced([1, 1, 1], chain(1), max_new_tokens=1)
    assert generate(session, [1, 1, 1], lambda context: 4) == [4]
    assert session.stats["accepted"] == 0


def test_the_candidate_budget_is_the_one_asked_for() -> None:
    prompt, model = [1, 2, 3], hashed(12, 1, 3)
    drafter = PTDDrafter(width=2, max_candidate_nodes=7)
    session = Session(prompt, drafter, max_seq_len=512, max_new_tokens=200)
    runner = ToyRunner(session, prompt)
    full = 0
    while not session.finished:
        key = [*prompt, *session.token_ids][-1]
        before = session.stats["candidate_nodes"]
        available = len(drafter.pool.retrieve(key, 1000))
        runner.step(model)
        verified = session.stats["candidate_nodes"] - before
        assert verified == min(7, available)
        full += available >= 7
    assert full > 20


def test_three_steps_that_accept_0_2_1_of_4() -> None:
    session = forced(
        [4],
        chain(9, 9, 9, 9),
        chain(6, 2, 9, 9),
        chain(8, 99, 9, 9),
        max_new_tokens=6,
    )
    assert [len(tokens) for tokens in run(session, [4], follow)] == [1, 3, 2]
    stats = session.stats
    assert stats["steps"] == 3
    assert stats["candidate_nodes"] == 12
    assert stats["draft_nodes"] == 0
    assert stats["accepted"] == 3
    assert stats["tokens"] == 6
    assert stats["accepted_histogram"][:5] == [1, 1, 1, 0, 0]
    assert 1 + stats["accepted"] / stats["steps"] == 2.0


def test_nothing_drafted_gives_zero_counts() -> None:
    session = forced([4], [], max_new_tokens=5)
    generate(session, [4], follow)
    stats = session.stats
    assert (stats["steps"], stats["tokens"]) == (5, 5)
    assert stats["hit_steps"] == stats["hit_tokens"] == stats["candidate_nodes"] == 0
    assert "NaN" not in json.dumps(stats)


def test_the_papers_identity_holds_on_the_counters() -> None:
    prompt, model = [1, 2, 3], hashed(30, 7, 2)
    session = Session(prompt, PTDDrafter(), max_seq_len=512, max_new_tokens=150)
    generate(session, prompt, model)
    stats = session.stats
    assert 0 < stats["hit_steps"] < stats["steps"]
    hit_rate = stats["hit_steps"] / stats["steps"]
    accept_length = stats["hit_tokens"] / stats["hit_steps"]
    efficiency = stats["tokens"] / stats["steps"]
    assert efficiency == pytest.approx(hit_rate * accept_length + (1 - hit_rate))


def test_logits_that_are_not_finite_matter_on_the_path_only() -> None:
    def rejected_rows_are_broken(context: list[int]) -> int:
        return -1 if 99 in context else follow(context)

    session = forced([4], chain(5, 99, 99))
    assert ToyRunner(session, [4]).step(rejected_rows_are_broken) == ([5, 6], 1)
    runner = ToyRunner(forced([4], chain(5)), [4])
    with pytest.raises(NonFiniteLogits, match="step 0"):
        runner.step(lambda context: -1)


def test_wrong_calls_and_wrong_outputs_are_refused() -> None:
    session = forced([4], chain(5, 6))
    with pytest.raises(RuntimeError, match="plan"):
        session.commit(np.zeros((3, 1), np.int32))
    session.plan(np.zeros(session.plan_bytes, np.uint8))
    with pytest.raises(InvalidArgument, match="output"):
        session.commit(np.zeros((2, 1), np.int32))
    with pytest.raises(InvalidArgument, match="block_size"):
        session.plan(np.zeros(16, np.uint8))
