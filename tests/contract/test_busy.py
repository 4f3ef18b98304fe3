"""A second request while one runs: it waits, or it errs, as the engine was told."""

from __future__ import annotations

import pytest

from ptd_engine import BusyError, ConfigError, EngineError
from ptd_engine.engine import Engine
from ptd_engine.testing.forced import FixedTrees
from ptd_engine.testing.toy import ToyRunner

from .hooked import MODEL, PARAMS, A, B, elsewhere


def engine_that(on_busy: str) -> Engine:
    runner = ToyRunner(MODEL, max_seq_len=512, vocab_size=24)
    return Engine(
        runner,
        FixedTrees([]),
        max_seq_len=512,
        vocab_size=24,
        on_busy=on_busy,  # type: ignore[arg-type]
    )


def test_an_engine_that_errs_refuses_a_second_request_and_goes_on() -> None:
    engine = engine_that("error")
    first = engine.generate(A, PARAMS)
    got = next(first).token_ids
    raised: list[BaseException] = []

    def second() -> None:
        try:
            list(engine.generate(B, PARAMS))
        except EngineError as error:
            raised.append(error)

    for _ in range(3):
        elsewhere(second)
    assert [type(error) for error in raised] == [BusyError] * 3
    assert "on_busy='wait'" in str(raised[0])
    for step in first:
        got += step.token_ids
    assert got == [t for step in engine_that("wait").generate(A, PARAMS) for t in step.token_ids]
    elsewhere(second)  # free again
    assert len(raised) == 3


@pytest.mark.parametrize("on_busy", ["wait", "error"])
def test_a_thread_that_would_wait_for_itself_errs_either_way(on_busy: str) -> None:
    engine = engine_that(on_busy)
    first = engine.generate(A, PARAMS)
    next(first)
    with pytest.raises(BusyError, match="close"):
        next(engine.generate(B, PARAMS))
    first.close()
    assert sum(len(step.token_ids) for step in engine.generate(B, PARAMS)) == 60


def test_there_is_no_third_way() -> None:
    with pytest.raises(ConfigError, match="on_busy='queue'"):
        engine_that("queue")
