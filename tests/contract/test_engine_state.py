"""Whatever happened to earlier requests, the next one equals that of a fresh engine: ids, finish
reason and every counter.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest
from reference.toy_models import hashed

from ptd_engine import EngineError, PTDConfig, SamplingParams, _core
from ptd_engine.drafters import make_drafter
from ptd_engine.testing.toy import ToyRunner

from .conftest import WatchedEngine, check_request, engine_of, llm_of, read_into, tokenizer_of, toy

A, B = [5, 9, 11, 3, 9, 11, 3, 9], [20, 21, 22]
LONG = [(7 * i * i) % 23 for i in range(120)]
PARAMS = SamplingParams(max_new_tokens=60)
MODEL = hashed(24, 5, 2)

Act = Callable[[], None]


class HookedRunner(ToyRunner):
    """Calls `act` at a point of the request: "prefill", "launch" or "wait", at a given step."""

    act: Act | None = None
    at: tuple[str, int] = ("", 0)

    def _reach(self, point: str) -> None:
        if self.act is not None and (point, self.steps) == self.at:
            act, self.act = self.act, None
            act()

    def prefill(self, token_ids: Any, *, prompt_len: int) -> None:
        super().prefill(token_ids, prompt_len=prompt_len)
        self.steps = 0
        self._reach("prefill")

    def launch(self, n_bucket: int) -> None:
        super().launch(n_bucket)
        self._reach("launch")

    def wait(self) -> Any:
        self._reach("wait")
        return super().wait()


def fresh() -> WatchedEngine:
    drafter = make_drafter(PTDConfig(width=3, depth=4), device_type="cpu")
    return engine_of(MODEL, drafter, vocab_size=24, runner=HookedRunner)


def result(engine: WatchedEngine, prompt: list[int]) -> tuple[object, ...]:
    generation = engine.generate(prompt, PARAMS)
    for _ in generation:
        check_request(generation, len(prompt))
    counters = {k: v for k, v in asdict(generation.stats).items() if not k.endswith("_s")}
    return generation.token_ids, generation.finish_reason, counters


@pytest.fixture(scope="module")
def expected() -> tuple[object, ...]:
    found = result(fresh(), B)
    assert found[2]["accepted"] > 0  # type: ignore[index]  # else there is no state to leak
    return found


def test_requests_in_turn_equal_those_of_fresh_engines() -> None:
    engine = fresh()
    for prompt in (A, B, A, LONG, B, A):
        assert result(engine, prompt) == result(fresh(), prompt)


def test_a_short_prompt_after_a_long_one_is_accepted_as_well_as_ever() -> None:
    engine, repetitive = fresh(), [1, 2, 3] * 4
    result(engine, LONG)
    result(engine, repetitive)
    after = engine.last.stats.mean_acceptance_length
    fresh_engine = fresh()
    result(fresh_engine, repetitive)
    assert after == fresh_engine.last.stats.mean_acceptance_length > 1


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 11])
@pytest.mark.parametrize("how", ["close", "drop", "cycle", "raise"])
def test_after_a_stream_that_was_given_up(
    how: str, steps: int, expected: tuple[object, ...]
) -> None:
    engine = fresh()

    def read(stream: Iterator[object]) -> None:
        for _ in range(steps):
            next(stream)

    if how == "close":
        stream = engine.generate(A, PARAMS)
        read(stream)
        stream.close()
        assert list(stream) == []
        stream.close()
    elif how == "drop":
        read(engine.generate(A, PARAMS))
    elif how == "cycle":
        holder: list[object] = [engine.generate(A, PARAMS)]
        holder.append(holder)
        read(holder[0])  # type: ignore[arg-type]
        del holder
    else:
        with pytest.raises(ZeroDivisionError):
            consume_and_fail(engine.generate(A, PARAMS), steps)
    engine.last = None  # type: ignore[assignment]
    assert result(engine, B) == expected


def consume_and_fail(stream: Iterator[object], steps: int) -> None:
    """A consumer that breaks after so many items."""
    for _ in range(steps):
        next(stream)
    raise ZeroDivisionError


POINTS = [("prefill", 0), ("launch", 1), ("wait", 1), ("launch", 4), ("wait", 9)]


@pytest.mark.parametrize("at", POINTS)
def test_after_a_fault_of_the_runner(at: tuple[str, int], expected: tuple[object, ...]) -> None:
    engine = fresh()
    runner = engine.runner
    assert isinstance(runner, HookedRunner)

    def fail() -> None:
        raise ZeroDivisionError

    runner.at, runner.act = at, fail
    with pytest.raises(ZeroDivisionError):
        result(engine, A)
    assert list(engine.last) == []
    assert result(engine, B) == expected


@pytest.mark.parametrize("at", POINTS)
def test_after_a_cancellation_from_another_thread(
    at: tuple[str, int], expected: tuple[object, ...]
) -> None:
    engine = fresh()
    runner = engine.runner
    assert isinstance(runner, HookedRunner)
    generation = engine.generate(A, PARAMS)

    def cancel() -> None:
        for _ in range(2):
            thread = threading.Thread(target=generation.close)
            thread.start()
            thread.join()

    runner.at, runner.act = at, cancel
    steps = list(generation)
    # The step that was running is finished and handed out; none follows.
    assert len(steps) == at[1] == runner.steps
    assert generation.finish_reason is None
    assert generation.token_ids == [token for step in steps for token in step.token_ids]
    assert result(engine, B) == expected


def test_a_waiting_request_can_be_cancelled(expected: tuple[object, ...]) -> None:
    engine = fresh()
    first, second = engine.generate(A, PARAMS), engine.generate(B, PARAMS)
    next(first)
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.extend(second))
    thread.start()
    second.close()
    thread.join(timeout=30)
    assert not thread.is_alive() and got == []
    first.close()
    assert result(engine, B) == expected


def test_the_last_step_frees_the_engine(expected: tuple[object, ...]) -> None:
    engine = fresh()
    finished = engine.generate(A, PARAMS)
    for _ in finished:
        if finished.finish_reason is not None:
            break
    assert result(engine, B) == expected
    assert next(finished, None) is None
    assert result(engine, B) == expected


def test_one_generation_is_read_from_one_place() -> None:
    engine = fresh()
    runner = engine.runner
    assert isinstance(runner, HookedRunner)
    generation = engine.generate(A, PARAMS)
    raised: list[BaseException] = []

    def read() -> None:
        try:
            next(generation)
        except EngineError as error:
            raised.append(error)

    def read_elsewhere() -> None:
        thread = threading.Thread(target=read)
        thread.start()
        thread.join(timeout=30)

    runner.at, runner.act = ("launch", 3), read_elsewhere
    assert sum(len(step.token_ids) for step in generation) == 60
    assert len(raised) == 1 and "read it from one place" in str(raised[0])


class FaultyDrafter(_core.Drafter):
    """Raises in one of its calls, at a given step."""

    def __init__(self) -> None:
        super().__init__()
        self.at = ("", -1)
        self.step = 0

    def needs(self) -> _core.DrafterNeeds:
        return _core.DrafterNeeds(max_nodes=4)

    def _reach(self, call: str) -> None:
        if self.at == (call, self.step):
            raise ZeroDivisionError

    def begin(self, prompt: list[int]) -> None:
        self.step = 0
        self._reach("begin")

    def propose(self, committed: list[int], tree: _core.TreeBuilder) -> None:
        tree.add_candidate(0, MODEL(committed))
        self._reach("propose")

    def observe(self, outcome: _core.StepOutcome) -> None:
        self._reach("observe")
        self.step += 1


@pytest.mark.parametrize(
    "at", [("begin", 0), ("propose", 0), ("observe", 0), ("propose", 3), ("observe", 3)]
)
def test_after_a_fault_of_the_drafter(at: tuple[str, int]) -> None:
    drafter = FaultyDrafter()
    engine = engine_of(MODEL, drafter, vocab_size=24)
    before = result(engine, B)
    drafter.at = at
    handed_out: list[int] = []
    generation = engine.generate(A, PARAMS)
    with pytest.raises(ZeroDivisionError):
        read_into(handed_out, generation)
    assert generation.token_ids == handed_out
    drafter.at = ("", -1)
    assert result(engine, B) == before


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_text_stream_closed_by_another_thread_has_no_final_chunk(steps: int) -> None:
    llm = toy([*"abcdefghijkl"], (1,))
    fresh_output = toy([*"abcdefghijkl"], (1,)).generate([0], PARAMS)
    stream = llm.stream([0], PARAMS)
    for _ in range(steps):
        next(stream)
    thread = threading.Thread(target=stream.close)
    thread.start()
    thread.join()
    assert list(stream) == []
    output = llm.generate([0], PARAMS)
    assert (output.text, output.stats.steps) == (fresh_output.text, fresh_output.stats.steps)


def test_a_text_stream_closed_during_a_step_ends_after_it() -> None:
    engine = fresh()
    llm = llm_of(engine, tokenizer_of([chr(97 + i) for i in range(21)]))
    runner = engine.runner
    assert isinstance(runner, HookedRunner)
    stream = llm.stream(A, PARAMS)
    runner.at, runner.act = ("launch", 2), lambda: close_elsewhere(stream.close)
    chunks = list(stream)
    assert [chunk.output for chunk in chunks] == [None, None]
    assert engine.last.token_ids == [token for chunk in chunks for token in chunk.token_ids]
    assert len(llm.generate(B, PARAMS).token_ids) == 60


def close_elsewhere(close: Act) -> None:
    thread = threading.Thread(target=close)
    thread.start()
    thread.join()


def test_an_exception_in_the_consumer_of_a_text_stream() -> None:
    llm = toy([*"abcdefghijkl"], (2,))
    expected = llm.generate([0], PARAMS)
    for after in range(4):
        with pytest.raises(ZeroDivisionError):
            consume_and_fail(llm.stream([0], PARAMS), after)
        output = llm.generate([0], PARAMS)
        assert (output.token_ids, output.stats.steps) == (expected.token_ids, expected.stats.steps)


def test_throwing_into_a_text_stream_cancels_it() -> None:
    llm = toy([*"abc"], (1,))
    stream = llm.stream([0], PARAMS)
    next(stream)
    with pytest.raises(ZeroDivisionError, match="thrown"):
        stream.throw(ZeroDivisionError("thrown"))
    assert list(stream) == []
    assert llm.generate([0], SamplingParams(max_new_tokens=3)).text == "abc"


def test_an_abandoned_generation_needs_no_collector() -> None:
    engine = fresh()
    gc.disable()
    try:
        next(engine.generate(A, PARAMS))
        engine.last = None  # type: ignore[assignment]
        done = threading.Event()
        thread = threading.Thread(target=lambda: (result(engine, B), done.set()))
        thread.start()
        assert done.wait(timeout=30)
        thread.join()
    finally:
        gc.enable()


def test_requests_of_many_threads_equal_those_in_turn() -> None:
    engine = fresh()
    prompts = [[1 + i, 9, 11] for i in range(8)]
    in_turn = [result(fresh(), prompt) for prompt in prompts]
    got: dict[int, tuple[object, ...]] = {}

    def work(index: int) -> None:
        got[index] = result(engine, prompts[index])

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert [got[i] for i in range(8)] == in_turn
