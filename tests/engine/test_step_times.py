"""What a step takes: measured on a runner, told to drafters that ask for it."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from engine.conftest import finish, make_engine

from ptd_engine import _core
from ptd_engine.config import SamplingParams
from ptd_engine.engine import Engine
from ptd_engine.model import CausalLM
from ptd_engine.runner import EagerRunner, StepTimes, measure_step_times
from ptd_engine.testing.toy import read_plan

VOCABULARY = 50


class ClockRunner:
    """Takes a known time by a clock of its own; not a model."""

    max_path = 64

    def __init__(self, max_nodes: int, node_buckets: tuple[int, ...] = ()) -> None:
        self.max_nodes, self.node_buckets = max_nodes, node_buckets
        size = int(_core.plan_layout(max([max_nodes, *node_buckets]), self.max_path)["total"])
        self.staging: npt.NDArray[np.uint8] = np.zeros(size, np.uint8)
        self.now = 0.0
        self.asked: set[tuple[int, int]] = set()  # (rows, bucket)

    def launch(self, n_bucket: int) -> None:
        plan = read_plan(self.staging, n_bucket, self.max_path)
        assert plan.token_ids.min() >= 0 and plan.token_ids.max() < VOCABULARY
        self.asked.add((plan.n_nodes, n_bucket))
        self.now += 0.010 + 0.001 * plan.n_nodes + 1e-6 * plan.prefix_len

    def wait(self) -> None:
        pass


def measured(runner: Any, max_seq_len: int, patch: pytest.MonkeyPatch) -> StepTimes:
    patch.setattr(time, "perf_counter", lambda: runner.now)
    return measure_step_times(runner, max_seq_len, VOCABULARY)


def test_the_cost_is_found_and_told_apart_from_the_prefixs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = measured(ClockRunner(30), 4096, monkeypatch)
    assert found.rows == (1, 2, 4, 8, 12, 16, 20, 24, 30)
    np.testing.assert_allclose(found.seconds, [0.010 + 0.001 * n for n in found.rows], rtol=1e-6)
    np.testing.assert_allclose(found.seconds_per_token, 1e-6, rtol=1e-6)
    assert found.max_rows == 30


def test_sizes_beyond_hope_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(ClockRunner(256), 4096, monkeypatch)
    assert found.max_rows == 256
    assert found.rows[-1] == 48  # 58 ms are more than five times 11; 64 rows were never run
    assert found.rows[:2] == (1, 2)


def test_a_runner_of_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(ClockRunner(1), 100, monkeypatch)
    assert found.rows == (1,)
    assert found.seconds[0] == pytest.approx(0.011, rel=0.01)


def test_buckets_are_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ClockRunner(12, (4, 12))
    assert measured(runner, 100, monkeypatch).rows == (1, 2, 4, 8, 12)
    assert runner.asked == {(1, 4), (2, 4), (4, 4), (8, 12), (12, 12)}


@pytest.mark.parametrize(
    ("max_seq_len", "rows", "buckets"), [(2, 5, ()), (3, 1, ()), (64, 20, (4, 20)), (128, 9, ())]
)
def test_on_a_model(
    tiny_llama: CausalLM, max_seq_len: int, rows: int, buckets: tuple[int, ...]
) -> None:
    runner = EagerRunner(tiny_llama, max_seq_len=max_seq_len, max_nodes=rows, node_buckets=buckets)
    found = measure_step_times(runner, max_seq_len, tiny_llama.config.vocab_size, limit_s=0.01)
    assert found.rows[0] == 1 and found.rows[-1] <= rows
    assert len(found.rows) == len(found.seconds) == len(found.seconds_per_token)
    for earlier, later in itertools.pairwise(found.rows):
        assert earlier < later
    assert min(found.seconds) > 0 and min(found.seconds_per_token) >= 0
    if max(found.seconds_per_token) == 0:
        assert list(found.seconds) == sorted(found.seconds)


class Priced(_core.Drafter):
    """Drafts nothing; keeps what it is told about steps, and when."""

    def __init__(self, asks: bool = True) -> None:
        super().__init__()
        self.asks = asks
        self.calls: list[Any] = []

    def needs(self) -> _core.DrafterNeeds:
        return _core.DrafterNeeds(5, step_cost=self.asks)

    def begin(self, prompt: list[int]) -> None:
        self.calls.append("begin")

    def propose(self, committed: list[int], tree: _core.TreeBuilder) -> None:
        pass

    def observe(self, outcome: _core.StepOutcome) -> None:
        pass

    def set_step_cost(
        self, rows: list[int], seconds: list[float], seconds_per_token: list[float]
    ) -> None:
        self.calls.append((rows, seconds, seconds_per_token))


def test_a_drafter_that_asks_is_told_before_the_first_request(tiny_llama: CausalLM) -> None:
    drafter = Priced()
    engine = make_engine(tiny_llama, drafter)
    ((rows, seconds, per_token),) = drafter.calls
    assert rows[0] == 1 and rows == sorted(set(rows)) and rows[-1] <= 6
    assert len(rows) == len(seconds) == len(per_token)
    assert min(seconds) > 0 and min(per_token) >= 0
    assert engine.step_times == StepTimes(tuple(rows), tuple(seconds), tuple(per_token), 6)
    before = finish(make_engine(tiny_llama, "none"), [3, 4, 5], SamplingParams(max_new_tokens=8))
    after = finish(engine, [3, 4, 5], SamplingParams(max_new_tokens=8))
    assert after.token_ids == before.token_ids  # measuring left nothing behind
    assert drafter.calls[1:] == ["begin"]


def test_one_that_does_not_ask_costs_no_measurement(tiny_llama: CausalLM) -> None:
    drafter = Priced(asks=False)
    assert make_engine(tiny_llama, drafter).step_times is None
    assert drafter.calls == []


def test_times_that_are_known_are_passed_on_as_they_are(tiny_llama: CausalLM) -> None:
    known = StepTimes((1, 6), (0.5, 0.75), (0.0, 0.125), 6)
    drafter = Priced()
    runner = EagerRunner(tiny_llama, max_seq_len=32, max_nodes=6)
    Engine(
        runner,
        drafter,
        max_seq_len=32,
        vocab_size=tiny_llama.config.vocab_size,
        step_times=known,
    )
    assert drafter.calls == [([1, 6], [0.5, 0.75], [0.0, 0.125])]


def test_times_of_smaller_trees_are_measured_anew(tiny_llama: CausalLM) -> None:
    small = StepTimes((1, 5), (0.5, 0.75), (0.0, 0.125), 5)
    runner = EagerRunner(tiny_llama, max_seq_len=32, max_nodes=6)
    size = tiny_llama.config.vocab_size
    engine = Engine(runner, Priced(), max_seq_len=32, vocab_size=size, step_times=small)
    assert engine.step_times is not None and engine.step_times.max_rows == 6
