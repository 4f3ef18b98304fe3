"""One engine over many requests: limits, isolation, cancellation, threads, damaged models."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine.conftest import CONTEXT, finish, make_engine

from ptd_engine import (
    CheckpointError,
    ConfigError,
    EngineError,
    PromptError,
    SamplingParams,
    _core,
)
from ptd_engine.model import CausalLM, load_model
from ptd_engine.testing import tiny

A, B = [5, 9, 11, 3, 9, 11, 3, 9], [60, 61, 62]
PARAMS = SamplingParams(max_new_tokens=50)


def test_requests_do_not_leak_into_each_other(tiny_llama: CausalLM) -> None:
    engine = make_engine(tiny_llama)
    first, between, again = (finish(engine, prompt, PARAMS) for prompt in (A, B, A))
    assert again.token_ids == first.token_ids
    assert again.stats.acceptance_histogram == first.stats.acceptance_histogram
    assert again.stats.steps == first.stats.steps
    assert between.token_ids == finish(make_engine(tiny_llama), B, PARAMS).token_ids


def test_a_closed_stream_leaves_nothing_behind(tiny_llama: CausalLM) -> None:
    engine = make_engine(tiny_llama)
    expected = finish(make_engine(tiny_llama), B, PARAMS).token_ids
    for steps in (1, 3, 9):
        generation = engine.generate(A, PARAMS)
        for _ in range(steps):
            next(generation)
        generation.close()
        assert finish(engine, B, PARAMS).token_ids == expected


def test_cache_equals_one_computed_from_scratch(tiny_llama: CausalLM) -> None:
    engine = make_engine(tiny_llama)
    generation = finish(engine, A, PARAMS)
    assert generation.stats.accepted > 0
    # The last step's path is committed by the step after it, so look at what steps before left.
    settled = generation.kv_len - max(len(generation.stats.acceptance_histogram), 1)
    fresh = make_engine(tiny_llama)
    text = A + generation.token_ids
    fresh.runner.prefill(text, prompt_len=len(text))
    for name in ("k", "v"):
        got = getattr(engine.runner.cache, name)[:, :, :settled]  # type: ignore[attr-defined]
        expected = getattr(fresh.runner.cache, name)[:, :, :settled]  # type: ignore[attr-defined]
        assert torch.allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("budget", [0, 1, 2, 3, 5, 8])
def test_budget_is_exact(tiny_llama: CausalLM, budget: int) -> None:
    engine = make_engine(tiny_llama)
    list(steps := engine.generate(A, SamplingParams(max_new_tokens=budget)))
    assert len(steps.token_ids) == budget
    assert steps.finish_reason == "length"


def test_context_limit(tiny_llama: CausalLM) -> None:
    for length in (24, 30, 31):
        prompt = (A * 4)[:length]
        runs = [
            finish(
                make_engine(tiny_llama, drafter, max_seq_len=32),
                prompt,
                SamplingParams(max_new_tokens=1000),
            )
            for drafter in ("none", "ptd")
        ]
        assert runs[0].token_ids == runs[1].token_ids
        assert len(runs[0].token_ids) == 32 - length
    with pytest.raises(PromptError, match="32 tokens; the limit is 31"):
        make_engine(tiny_llama, max_seq_len=32).generate(A * 4, PARAMS)


def test_eos_and_stop_ids(tiny_llama: CausalLM) -> None:
    output = finish(make_engine(tiny_llama), A, PARAMS).token_ids
    for token in set(output):
        at = output.index(token)
        stopped = make_engine(tiny_llama, eos=(token,))
        got = finish(stopped, A, PARAMS)
        assert (got.token_ids, got.finish_reason) == (output[: at + 1], "stop")
        ignoring = SamplingParams(max_new_tokens=50, ignore_eos=True)
        assert finish(stopped, A, ignoring).token_ids == output
        named = SamplingParams(max_new_tokens=50, ignore_eos=True, stop_token_ids=[token])
        assert finish(stopped, A, named).token_ids == output[: at + 1]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "at least one token"),
        ([5, 97], r"prompt\[1\]=97"),
        ([-1], r"prompt\[0\]=-1"),
        ([5, "6"], r"prompt\[1\]='6'"),
        ([True], r"prompt\[0\]=True"),
        ([1.5], r"prompt\[0\]=1.5"),
    ],
)
def test_bad_prompts_name_the_value_and_the_engine_goes_on(
    tiny_llama: CausalLM, prompt: list[int], message: str
) -> None:
    engine = make_engine(tiny_llama)
    with pytest.raises(PromptError, match=message):
        engine.generate(prompt, PARAMS)
    assert len(finish(engine, A, PARAMS).token_ids) == 50


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_logits_fail_the_request_only(tiny_llama: CausalLM, value: float) -> None:
    engine = make_engine(tiny_llama)
    expected = finish(engine, A, PARAMS).token_ids
    norm = tiny_llama.weights.norm
    saved = norm.clone()
    try:
        norm[3] = value
        with pytest.raises(EngineError, match="not finite"):
            finish(engine, A, PARAMS)
    finally:
        norm.copy_(saved)
    assert finish(engine, A, PARAMS).token_ids == expected


def test_threads_wait_for_each_other(tiny_llama: CausalLM) -> None:
    engine = make_engine(tiny_llama)
    prompts = [[3 + i, 9, 11] for i in range(8)]
    expected = [finish(engine, prompt, PARAMS).token_ids for prompt in prompts]
    got: list[list[int]] = [[] for _ in prompts]

    def work(index: int) -> None:
        generation = engine.generate(prompts[index], PARAMS)
        list(generation)
        got[index] = generation.token_ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert got == expected


def test_a_half_read_stream_makes_the_same_thread_fail_clearly(tiny_llama: CausalLM) -> None:
    engine = make_engine(tiny_llama)
    open_stream = engine.generate(A, PARAMS)
    next(open_stream)
    with pytest.raises(EngineError, match="busy"):
        next(engine.generate(B, PARAMS))
    rest = [token for step in open_stream for token in step.token_ids]
    assert rest == open_stream.token_ids[-len(rest) :]
    finish(engine, B, PARAMS)


def test_a_drafter_that_raises_fails_the_request_only(tiny_llama: CausalLM) -> None:
    class Faulty(_core.Drafter):
        broken = True

        def needs(self) -> _core.DrafterNeeds:
            return _core.DrafterNeeds(max_nodes=4)

        def begin(self, prompt: list[int]) -> None:
            pass

        def propose(self, committed: list[int], tree: _core.TreeBuilder) -> None:
            if self.broken and len(committed) > len(A) + 2:
                raise RuntimeError("the drafter's own fault")
            tree.add_candidate(0, committed[-1])

        def observe(self, outcome: _core.StepOutcome) -> None:
            pass

    faulty = Faulty()
    engine = make_engine(tiny_llama, faulty)
    with pytest.raises(RuntimeError, match="own fault"):
        finish(engine, A, PARAMS)
    faulty.broken = False
    expected = finish(make_engine(tiny_llama, "none"), A, PARAMS).token_ids
    assert finish(engine, A, PARAMS).token_ids == expected


def test_a_runner_too_small_for_the_context_is_refused(tiny_llama: CausalLM) -> None:
    with pytest.raises(ConfigError, match=f"max_seq_len={CONTEXT + 1}"):
        make_engine(tiny_llama, max_seq_len=CONTEXT + 1)


def test_end_of_sequence_ids_are_the_union_of_the_sources(
    tiny_dir: Callable[[str], Path], tmp_path: Path
) -> None:
    directory = shutil.copytree(tiny_dir("llama3"), tmp_path / "model")
    settings = directory / "generation_config.json"
    settings.write_text('{"eos_token_id": [2, 96]}')
    assert load_model(directory).config.eos_token_ids == (2, 96)
    settings.write_text('{"eos_token_id": "x"}')
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        load_model(directory)


def test_engines_over_one_model_do_not_share_a_dynamic_rotary_table(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    built = tiny.build("llama3", seed=5, rope_parameters=rope, max_position_embeddings=32)
    model = load_model(tiny.save(built, tmp_path / "model"), dtype="float32", max_seq_len=CONTEXT)
    expected = finish(make_engine(model), A * 5, PARAMS).token_ids
    stream = make_engine(model).generate(A * 5, PARAMS)
    tokens = next(stream).token_ids
    finish(make_engine(model, "none"), B * 33, SamplingParams(max_new_tokens=4))
    tokens = tokens + [token for step in stream for token in step.token_ids]
    assert tokens == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_non_finite_logits_fail_the_recursive_walk(
    tiny_llama: CausalLM, temperature: float
) -> None:
    norm = tiny_llama.weights.norm
    saved = norm.clone()
    params = SamplingParams(temperature=temperature, verification="recursive")
    try:
        norm[3] = float("nan")
        with pytest.raises(EngineError, match="not finite"):
            finish(make_engine(tiny_llama), A, params)
    finally:
        norm.copy_(saved)


def test_one_drafter_in_two_engines_is_refused_not_shared(tiny_llama: CausalLM) -> None:
    drafter = _core.PTDDrafter()
    first, second = make_engine(tiny_llama, drafter), make_engine(tiny_llama, drafter)
    stream = first.generate(A, PARAMS)
    next(stream)
    expected = finish(second, B, PARAMS).token_ids
    with pytest.raises(RuntimeError, match="each session its own drafter"):
        next(stream)
    assert finish(first, B, PARAMS).token_ids == expected


class Keeper(_core.Drafter):
    """Keeps what it is handed, and proposes `token` below the root."""

    def __init__(self, token: int) -> None:
        super().__init__()
        self.token = token
        self.trees: list[_core.TreeBuilder] = []
        self.outcomes: list[_core.StepOutcome] = []

    def needs(self) -> _core.DrafterNeeds:
        return _core.DrafterNeeds(max_nodes=2)

    def begin(self, prompt: list[int]) -> None:
        pass

    def propose(self, committed: list[int], tree: _core.TreeBuilder) -> None:
        tree.add_candidate(0, self.token)
        self.trees.append(tree)

    def observe(self, outcome: _core.StepOutcome) -> None:
        self.trees[-1].add_candidate(0, 7)  # too late: changes the drafter's copy only
        self.outcomes.append(outcome)


def test_a_drafter_may_keep_what_it_was_handed(tiny_llama: CausalLM) -> None:
    keeper = Keeper(9)
    expected = finish(make_engine(tiny_llama, "none"), A, PARAMS).token_ids
    assert finish(make_engine(tiny_llama, keeper), A, PARAMS).token_ids == expected
    assert all(tree.tokens[1:] == [9, 7] for tree in keeper.trees)
    assert all(o.outputs.shape == (len(o.tree), 1) for o in keeper.outcomes)
    assert [t for o in keeper.outcomes for t in o.new_tokens] == expected


def test_a_drafted_token_outside_the_vocabulary_is_named(tiny_llama: CausalLM) -> None:
    engine = make_engine(tiny_llama, Keeper(97))
    with pytest.raises(ValueError, match="token=97 is not valid"):
        finish(engine, A, PARAMS)


def test_a_stream_in_a_reference_cycle_is_collected(tiny_llama: CausalLM) -> None:
    engine = make_engine(tiny_llama)
    holder: list[object] = []
    stream = engine.generate(A, PARAMS)
    next(stream)
    holder += [stream, holder]
    del stream, holder
    assert len(finish(engine, B, PARAMS).token_ids) == 50


def test_a_stream_that_moved_to_another_thread_is_known_there(tiny_llama: CausalLM) -> None:
    engine = make_engine(tiny_llama)
    stream = engine.generate(A, PARAMS)
    next(stream)
    raised: list[BaseException] = []

    def work() -> None:
        next(stream)
        try:
            next(engine.generate(B, PARAMS))
        except EngineError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(timeout=30)
    assert len(raised) == 1
    stream.close()
