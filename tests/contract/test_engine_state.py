"""Whatever happened to earlier requests, the next one equals that of a fresh engine: ids, finish
reason and every counter.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from ptd_engine import SamplingParams, _core

from .conftest import engine_of, read_into, toy
from .hooked import MODEL, PARAMS, POINTS, A, B, Result, elsewhere, fresh, hook, result

LONG = [(7 * i * i) % 23 for i in range(120)]


def test_requests_in_turn_equal_those_of_fresh_engines() -> None:
    engine = fresh()
    for prompt in (A, B, A, LONG, B, A):
        found = result(engine, prompt)
        assert found == result(fresh(), prompt)
        assert found[2]["accepted"] > 0  # else there would be no state to leak


def test_a_short_prompt_after_a_long_one_is_accepted_as_well_as_ever() -> None:
    engine, repetitive = fresh(), [1, 2, 3] * 4
    result(engine, LONG)
    result(engine, repetitive)
    after = engine.last.stats.mean_acceptance_length
    fresh_engine = fresh()
    result(fresh_engine, repetitive)
    assert after == fresh_engine.last.stats.mean_acceptance_length > 1


def consume_and_fail(stream: Iterator[object], steps: int) -> None:
    """A consumer that breaks after so many items."""
    for _ in range(steps):
        next(stream)
    raise ZeroDivisionError


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 11])
@pytest.mark.parametrize("how", ["close", "drop", "cycle", "raise"])
def test_after_a_stream_that_was_given_up(how: str, steps: int) -> None:
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
    assert result(engine, B) == result(fresh(), B)


def test_an_abandoned_generation_needs_no_collector() -> None:
    engine = fresh()
    got: list[Result] = []
    gc.disable()
    try:
        next(engine.generate(A, PARAMS))
        engine.last = None  # type: ignore[assignment]
        elsewhere(lambda: got.append(result(engine, B)))
    finally:
        gc.enable()
    assert got == [result(fresh(), B)]


def test_the_last_step_frees_the_engine() -> None:
    engine = fresh()
    finished = engine.generate(A, PARAMS)
    for _ in finished:
        if finished.finish_reason is not None:
            break
    assert result(engine, B) == result(fresh(), B)
    assert next(finished, None) is None
    assert result(engine, B) == result(fresh(), B)


@pytest.mark.parametrize("at", POINTS)
def test_after_a_fault_of_the_runner(at: tuple[str, int]) -> None:
    engine = fresh()

    def fail() -> None:
        raise ZeroDivisionError

    hook(engine, at, fail)
    with pytest.raises(ZeroDivisionError):
        result(engine, A)
    assert list(engine.last) == []
    assert result(engine, B) == result(fresh(), B)


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


def test_requests_of_many_threads_equal_those_in_turn() -> None:
    engine = fresh()
    prompts = [[1 + i, 9, 11] for i in range(8)]
    in_turn = [result(fresh(), prompt) for prompt in prompts]
    got: dict[int, Result] = {}

    def work(index: int) -> None:
        got[index] = result(engine, prompts[index])

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert [got[i] for i in range(8)] == in_turn
