"""Requests that another thread cancels, at any point: the next equals that of a fresh engine."""

from __future__ import annotations

import threading

import pytest

from ptd_engine import EngineError, SamplingParams

from .conftest import llm_of, tokenizer_of, toy
from .hooked import PARAMS, POINTS, A, B, elsewhere, fresh, hook, result


@pytest.mark.parametrize("at", POINTS)
def test_after_a_cancellation_from_another_thread(at: tuple[str, int]) -> None:
    engine = fresh()
    generation = engine.generate(A, PARAMS)

    def cancel() -> None:
        for _ in range(2):
            elsewhere(generation.close)

    runner = hook(engine, at, cancel)
    steps = list(generation)
    # The step that was running is finished and handed out; none follows.
    assert len(steps) == at[1] == runner.steps
    assert generation.finish_reason is None
    assert generation.token_ids == [token for step in steps for token in step.token_ids]
    assert result(engine, B) == result(fresh(), B)


def test_a_waiting_request_can_be_cancelled() -> None:
    engine = fresh()
    first, second = engine.generate(A, PARAMS), engine.generate(B, PARAMS)
    next(first)
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.extend(second), daemon=True)
    thread.start()
    second.close()
    thread.join(timeout=30)
    assert not thread.is_alive() and got == []
    first.close()
    assert result(engine, B) == result(fresh(), B)


def test_one_generation_is_read_from_one_place() -> None:
    engine = fresh()
    generation = engine.generate(A, PARAMS)
    raised: list[BaseException] = []

    def read() -> None:
        try:
            next(generation)
        except EngineError as error:
            raised.append(error)

    hook(engine, ("launch", 3), lambda: elsewhere(read))
    assert sum(len(step.token_ids) for step in generation) == 60
    assert len(raised) == 1 and "read it from one place" in str(raised[0])


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_text_stream_closed_by_another_thread_has_no_final_chunk(steps: int) -> None:
    llm = toy([*"abcdefghijkl"], (1,))
    fresh_output = toy([*"abcdefghijkl"], (1,)).generate([0], PARAMS)
    stream = llm.stream([0], PARAMS)
    for _ in range(steps):
        next(stream)
    elsewhere(stream.close)
    assert list(stream) == []
    output = llm.generate([0], PARAMS)
    assert (output.text, output.stats.steps) == (fresh_output.text, fresh_output.stats.steps)


def test_a_text_stream_closed_during_a_step_ends_after_it() -> None:
    engine = fresh()
    llm = llm_of(engine, tokenizer_of([chr(97 + i) for i in range(21)]))
    stream = llm.stream(A, PARAMS)
    hook(engine, ("launch", 2), lambda: elsewhere(stream.close))
    chunks = list(stream)
    assert [chunk.output for chunk in chunks] == [None, None]
    assert engine.last.token_ids == [token for chunk in chunks for token in chunk.token_ids]
    assert len(llm.generate(B, PARAMS).token_ids) == 60


def test_a_text_stream_closed_after_its_last_step_has_no_final_chunk() -> None:
    llm = toy([*"abc"], (1,))
    stream = llm.stream([0], SamplingParams(max_new_tokens=2))
    assert next(stream).text == "ab"
    stream.close()
    assert list(stream) == []


def test_a_text_stream_ends_with_a_generation_closed_below_it() -> None:
    llm = toy([*"abcdef"], (1,))
    stream = llm.stream([0], PARAMS)
    assert next(stream).text == "ab"
    llm.engine.last.close()
    assert list(stream) == []
