"""Captures that fail, graphs that are required, warming up, and the settings around them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from runner.conftest import (
    CONTEXT,
    KV_BUCKETS,
    NODE_BUCKETS,
    Load,
    eager_engine,
    engine_of,
    graphs_of,
    run,
)

from ptd_engine.errors import ConfigError, UnavailableError
from ptd_engine.llm import LLM
from ptd_engine.runner import EagerRunner, GraphRunner, check_graphs_on, make_runner
from ptd_engine.testing.graph_twin import GraphTwin


class FullAfter(GraphTwin):
    """Has memory for some captures."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        if self.captures == self.room:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")
        return super().capture(step)


@pytest.mark.parametrize("room", [0, 1])
def test_without_memory_steps_run_op_by_op_and_say_so(
    load: Load, room: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = load("cpu")
    engine = engine_of(model, twin=FullAfter(room))
    with caplog.at_level(logging.WARNING, "ptd_engine"):
        got = run(engine)
    assert got.token_ids == run(eager_engine(model)).token_ids
    stats = got.stats
    assert stats.graph_fallbacks > 0 and stats.graph_captures == room
    assert stats.graph_steps + stats.graph_captures + stats.graph_fallbacks == stats.steps
    assert stats.host_syncs == stats.steps
    assert graphs_of(engine).failure == "CUDA out of memory."
    (warning,) = caplog.messages  # once, not at every step
    assert (
        f"it has {room}" in warning and "out of memory" in warning and "graph_fallbacks" in warning
    )
    assert stats.as_dict()["graph_fallbacks"] == stats.graph_fallbacks
    assert run(engine).stats.graph_captures == 0  # nothing is tried again


def test_required_graphs_are_an_error_at_once(load: Load) -> None:
    with pytest.raises(UnavailableError, match="graphs='require', but a step of 20 rows.*memory"):
        engine_of(load("cpu"), twin=FullAfter(0), required=True)


def test_required_graphs_are_an_error_later(load: Load) -> None:
    engine = engine_of(load("cpu"), twin=FullAfter(1), required=True)
    with pytest.raises(UnavailableError, match="could not be captured"):
        run(engine)
    assert graphs_of(engine).failure == ""


def test_a_fault_of_the_step_itself_is_not_taken_for_a_capture_that_failed(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(load("cpu"))

    def broken(shape: Any) -> None:
        raise TypeError("planted")

    monkeypatch.setattr(graphs_of(engine).step, "forward", broken)
    with pytest.raises(TypeError, match="planted"):
        run(engine)


def test_warming_up_captures_everything_largest_first(load: Load) -> None:
    model = load("cpu")
    engine = engine_of(model)
    count = len(NODE_BUCKETS) * len(KV_BUCKETS)
    assert engine.warmup() == count and engine.warmup() == 0
    shapes = graphs_of(engine).shapes
    largest = shapes[0]
    assert (largest.rows, largest.kv_bound) == (NODE_BUCKETS[-1], CONTEXT + NODE_BUCKETS[-1])
    assert [shape.rows for shape in shapes] == sorted((s.rows for s in shapes), reverse=True)
    got = run(engine)
    assert got.token_ids == run(eager_engine(model)).token_ids
    assert got.stats.graph_steps == got.stats.steps  # none was captured on the way
    assert engine.warmup(sampling=True) == 2 * count
    sampled = run(engine, temperature=0.9, seed=3).stats
    assert sampled.graph_steps == sampled.steps


def test_warming_up_leaves_no_row_to_be_reused(load: Load) -> None:
    engine = engine_of(load("cpu"))
    engine.reuse_prefix = True
    expected = run(engine).token_ids
    engine.warmup()
    again = run(engine)
    assert again.token_ids == expected and again.stats.reused_tokens == 0


def test_an_eager_engine_has_nothing_to_warm_up(load: Load) -> None:
    engine = eager_engine(load("cpu"), "none")
    assert engine.warmup() == 0
    stats = run(engine).stats
    assert (stats.host_syncs, stats.graph_steps, stats.graph_fallbacks) == (stats.steps, 0, 0)


@pytest.mark.parametrize("buckets", [(), (16,), (128, 16, 128), (16, 200)])
def test_kv_buckets_that_do_not_cover_the_context_are_refused(
    load: Load, buckets: tuple[int, ...]
) -> None:
    with pytest.raises(ConfigError, match="kv_buckets.*rising numbers that end with max_seq_len"):
        GraphRunner(load("cpu"), GraphTwin(), max_seq_len=CONTEXT, max_nodes=4, kv_buckets=buckets)


@pytest.mark.parametrize("value", ["on", True, None, "Require"])
def test_unknown_settings_are_refused_before_anything_is_loaded(value: Any) -> None:
    with pytest.raises(ConfigError, match="graphs=.*'auto', 'off' or 'require'"):
        LLM.from_pretrained("no such model", graphs=value)


def test_graphs_cannot_be_required_without_a_gpu(load: Load) -> None:
    with pytest.raises(UnavailableError, match="'auto' or 'off' on cpu"):
        LLM.from_pretrained("no such model", device="cpu", graphs="require")
    with pytest.raises(UnavailableError, match="tensor_parallel=2"):
        check_graphs_on("require", torch.device("cuda"), 2)
    check_graphs_on("require", torch.device("cuda"))
    with pytest.raises(UnavailableError, match="need a GPU"):
        make_runner(load("cpu"), graphs="require", max_seq_len=64, max_nodes=4)
    for graphs in ("auto", "off"):
        runner = make_runner(load("cpu"), graphs=graphs, max_seq_len=64, max_nodes=4)
        assert isinstance(runner, EagerRunner)


def test_the_plan_is_copied_where_host_and_device_are_apart(load: Load) -> None:
    runner = graphs_of(engine_of(load("cpu"), "none"))
    block, output = runner.buffers.view(1).token_ids, runner.buffers.output
    assert block.data_ptr() != runner.staging.ctypes.data
    assert output.data_ptr() != runner.buffers.host_output.ctypes.data
