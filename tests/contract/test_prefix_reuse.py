"""Prefix reuse: a request computes only what the last one left out, and answers as ever."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

import pytest

from ptd_engine import ConfigError, EngineError, PTDConfig, SamplingParams
from ptd_engine.drafters import make_drafter
from ptd_engine.engine import Engine, Generation
from ptd_engine.testing.forced import FixedTrees, chain
from ptd_engine.testing.toy import ToyRunner, scripted

from .conftest import OTHER, PROMPT, check_request
from .hooked import MODEL, PARAMS, POINTS, A, B, HookedRunner, elsewhere

SCRIPT = [5, 6, 7, 8, 9, 10, 11, 12]
WRONG = 20


def reusing(model: Any = MODEL, drafter: Any = None) -> Engine:
    runner = HookedRunner(model, max_seq_len=512, vocab_size=24)
    drafter = drafter or make_drafter(PTDConfig(width=3, depth=4), device_type="cpu")
    return Engine(runner, drafter, max_seq_len=512, vocab_size=24, reuse_prefix=True)


def run(engine: Engine, prompt: list[int], params: SamplingParams = PARAMS) -> Generation:
    generation = engine.generate(prompt, params)
    for _ in generation:
        check_request(generation, len(prompt))
    return generation


def answer(generation: Generation) -> tuple[Any, ...]:
    skip = ("_s", "reused_tokens")
    counters = {k: v for k, v in asdict(generation.stats).items() if not k.endswith(skip)}
    return generation.token_ids, generation.finish_reason, counters


def check_cache(engine: Engine) -> int:
    """What the engine believes to be cached is there; returns its length."""
    runner = engine.runner
    assert isinstance(runner, ToyRunner)
    assert runner.kv[: len(engine._cached)].tolist() == engine._cached
    return len(engine._cached)


def test_the_turns_of_a_chat_are_computed_once() -> None:
    engine, prompt, expected = reusing(), list(A), 0
    for turn in range(6):
        generation = run(engine, prompt)
        assert answer(generation) == answer(run(reusing(), prompt))
        kept = check_cache(engine)
        # All but the last token, or a path that would have been moved by a next step.
        assert len(prompt) + 60 - 8 < kept <= len(prompt) + 60
        assert generation.stats.reused_tokens == expected
        prompt = [*prompt, *generation.token_ids, 3, turn]
        expected = kept


@pytest.mark.parametrize(
    ("tree", "budget", "kept"),
    [
        ([], 2, 0),  # the pending token has no row
        (chain(6, 7, 8), 5, 3),  # an accepted path that lies where it belongs
        (chain(6, 7, WRONG), 4, 2),
        ([(WRONG, -1), (6, -1), (7, 1)], 4, 0),  # rows 2 and 3 are not in place yet
        ([(6, -1), (WRONG, 0), (7, 0)], 4, 1),
        (chain(6, 7, 8, 9, 10), 4, 3),  # the output ends on the path, and so does what is kept
    ],
)
def test_rows_that_were_not_moved_are_not_reused(
    tree: list[tuple[int, int]], budget: int, kept: int
) -> None:
    engine = reusing(scripted(SCRIPT, prompt_len=1, other=OTHER), FixedTrees(chain(WRONG), tree))
    generation = run(engine, [PROMPT], SamplingParams(max_new_tokens=budget))
    assert generation.stats.steps == 2
    assert check_cache(engine) == 2 + kept


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    engine = reusing()
    assert [run(engine, A).stats.reused_tokens for _ in range(2)] == [0, len(A) - 1]
    assert run(engine, A[:3]).stats.reused_tokens == 2
    assert run(engine, A[:1]).stats.reused_tokens == 0
    assert answer(run(engine, A)) == answer(run(reusing(), A))


@pytest.mark.parametrize("how", ["cancel", "fault"])
@pytest.mark.parametrize("at", POINTS)
def test_a_request_that_broke_off_leaves_committed_rows_only(at: tuple[str, int], how: str) -> None:
    engine = reusing()
    runner = engine.runner
    assert isinstance(runner, HookedRunner)
    run(engine, [*A, 1, 2])
    generation = engine.generate([*A, 4], PARAMS)

    def fail() -> None:
        raise ZeroDivisionError

    runner.at, runner.act = at, fail if how == "fault" else lambda: elsewhere(generation.close)
    if how == "fault":
        with pytest.raises(ZeroDivisionError):
            list(generation)
    else:
        list(generation)
    check_cache(engine)
    prompt = [*A, 4, *generation.token_ids, 7, 8]
    after = run(engine, prompt)
    assert after.stats.reused_tokens >= len(A)
    assert answer(after) == answer(run(reusing(), prompt))


def test_a_fault_of_the_model_leaves_committed_rows_only() -> None:
    armed = True

    def model(context: list[int]) -> int:
        return -1 if armed and len(context) == len(A) + 5 else MODEL(context)

    engine = reusing(model)
    generation = engine.generate(A, PARAMS)
    with pytest.raises(EngineError, match="not finite"):
        list(generation)
    armed = False
    assert check_cache(engine) >= len(A)
    assert answer(run(engine, A)) == answer(run(reusing(), A))


def test_random_histories_equal_fresh_engines() -> None:
    dice, engine = random.Random(3), reusing()
    history: list[int] = []
    reused = 0
    for _ in range(200):
        start = history[: dice.choice([0, len(history) // 2, len(history), len(history)])]
        prompt = [*start, *(dice.randrange(24) for _ in range(dice.randrange(1, 5)))][:200]
        params = SamplingParams(max_new_tokens=dice.choice([0, 1, 2, 9, 20]))
        generation = engine.generate(prompt, params)
        for _ in range(dice.choice([0, 1, 3, 99])):
            next(generation, None)
        generation.close()
        check_cache(engine)
        if generation.finish_reason is not None:
            assert answer(generation) == answer(run(reusing(), prompt, params))
            reused += generation.stats.reused_tokens
        history = [*prompt, *generation.token_ids]
    assert reused > 300


def test_nothing_is_reused_unless_asked_for() -> None:
    runner = ToyRunner(MODEL, max_seq_len=512, vocab_size=24)
    engine = Engine(runner, FixedTrees([]), max_seq_len=512, vocab_size=24)
    assert [run(engine, B).stats.reused_tokens for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("value", ["no", 1, None])
def test_the_switch_is_a_truth_value(value: Any) -> None:
    drafter = make_drafter("none", device_type="cpu")
    with pytest.raises(ConfigError, match=f"reuse_prefix={value!r} .*True or False"):
        Engine(
            HookedRunner(MODEL, max_seq_len=512, vocab_size=24),
            drafter,
            max_seq_len=512,
            vocab_size=24,
            reuse_prefix=value,
        )
