"""The whole decode loop by capture and replay, through the twin of CUDA graphs: equal to eager."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from runner.conftest import (
    KV_BUCKETS,
    NODE_BUCKETS,
    PROMPT,
    Load,
    eager_engine,
    engine_of,
    graphs_of,
    run,
)

from ptd_engine import _core
from ptd_engine.config import SamplingParams
from ptd_engine.model import CausalLM, load_model
from ptd_engine.runner import GraphRunner
from ptd_engine.testing import tiny
from ptd_engine.testing.graph_recording import TwinError
from ptd_engine.testing.graph_twin import GraphTwin

MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "seed": 7},
    "filtered": {"temperature": 1.0, "top_k": 30, "top_p": 0.9, "seed": 3},
}


class NoGraphs(GraphTwin):
    """Has no memory for any capture."""

    def capture(self, step: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory, as planted")


@pytest.mark.parametrize(
    ("kernels", "mode"), [("torch", "filtered"), *(("cpu", mode) for mode in MODES)]
)
def test_replayed_steps_equal_eager_ones(load: Load, kernels: str, mode: str) -> None:
    model, fields = load(kernels), {**MODES[mode], "tokens": 12}
    expected = run(eager_engine(model, "none"), **fields).token_ids
    plain, drafted = engine_of(model, "none"), engine_of(model)
    assert run(plain, **fields).token_ids == expected
    got = run(drafted, **fields)
    assert got.token_ids == expected
    assert got.stats.graph_steps > 0
    # The same shapes op by op: the cache has the same bits, not only the same tokens.
    alike = engine_of(model, twin=NoGraphs())
    again = run(alike, **fields)
    assert again.token_ids == expected and again.stats.graph_steps == 0
    rows = got.kv_len
    for ours, theirs in zip(cache(drafted, rows), cache(alike, rows), strict=True):
        assert torch.equal(ours, theirs)


def cache(engine: Any, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    memory = graphs_of(engine).memory
    return memory.cache.k[:, :, :rows], memory.cache.v[:, :, :rows]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama32", "qwen3"])
def test_drafting_equals_plain_decoding_bit_for_bit(
    load: Load, family: str, dtype: str, mode: str
) -> None:
    """With row-invariant kernels, both sides replayed: tokens, and the cache they left."""
    model, fields = load("cpu", dtype, family), MODES[mode]
    plain, drafted = engine_of(model, "none", max_seq_len=96, kv_buckets=(96,)), engine_of(model)
    expected, got = run(plain, tokens=24, **fields), run(drafted, tokens=24, **fields)
    assert got.token_ids == expected.token_ids
    # What the last step accepted is not in place yet.
    rows = graphs_of(drafted).buffers.header().prefix_len + 1
    assert rows > len(PROMPT) + 8
    for ours, theirs in zip(cache(drafted, rows), cache(plain, rows), strict=True):
        assert torch.equal(ours, theirs)


def test_one_wait_a_step_and_every_step_counted(load: Load) -> None:
    engine = engine_of(load("cpu"))
    for fields in (*MODES.values(), {}):
        stats = run(engine, **fields).stats
        assert stats.host_syncs == stats.steps
        assert stats.graph_steps + stats.graph_captures + stats.graph_fallbacks == stats.steps
        assert stats.graph_fallbacks == 0
    assert stats.graph_captures == 0 and stats.graph_steps == stats.steps  # the last has met all


def test_lengths_that_rise_and_fall_equal_eager(load: Load) -> None:
    """Prompts of 5, 50 and 5 tokens on one engine: nothing of a longer one is left."""
    model = load("torch")
    engine, eager = engine_of(model), eager_engine(model)
    prompts = [PROMPT[:5], [3 + i * 7 % 80 for i in range(50)], PROMPT[:5]]
    outputs = [run(engine, prompt, tokens=8).token_ids for prompt in prompts]
    assert outputs == [run(eager, prompt, tokens=8).token_ids for prompt in prompts]
    assert outputs[0] == outputs[2]
    bounds = {shape.kv_bound - shape.rows for shape in graphs_of(engine).shapes}
    assert bounds == {KV_BUCKETS[0], KV_BUCKETS[2]}


class Sizes(_core.Drafter):
    """Proposes trees of given sizes in turn, of no use."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes, self.step = sizes, 0

    def needs(self) -> _core.DrafterNeeds:
        return _core.DrafterNeeds(max(self.sizes) - 1)

    def begin(self, prompt: list[int]) -> None:
        self.step = 0

    def propose(self, committed: list[int], tree: _core.TreeBuilder) -> None:
        for i in range(1, self.sizes[self.step % len(self.sizes)]):
            tree.add_candidate(max(0, i - 3), 3 + (self.step + i) % 90)
        self.step += 1

    def observe(self, outcome: _core.StepOutcome) -> None:
        pass


def test_every_bucket_is_captured_and_replayed(load: Load) -> None:
    model = load("cpu")
    sizes = [size for bucket in NODE_BUCKETS for size in {max(1, bucket - 2), bucket}]
    engine = engine_of(model, Sizes(sizes))
    expected = run(eager_engine(model, "none"), tokens=80).token_ids
    for _ in range(2):
        assert run(engine, tokens=80).token_ids == expected
    shapes = {(s.rows, s.kv_bound - s.rows) for s in graphs_of(engine).shapes}
    assert shapes == {(rows, kv) for rows in NODE_BUCKETS for kv in KV_BUCKETS}
    assert all(shape.mode == "greedy" for shape in graphs_of(engine).shapes)


class Churning(GraphRunner):
    """Between steps, has the allocator hand out and take back memory of all sizes."""

    addresses: list[tuple[int, ...]]

    def launch(self, n_bucket: int) -> None:
        held = [torch.full((size,), float("nan")) for size in (8, 97, 640, 4096, 40_000)]
        del held[::2]
        super().launch(n_bucket)
        held.append(torch.full((1 << 16,), float("nan")))
        memory = self.memory
        tensors = [*memory.rewritten, memory.cache.k, memory.cache.v, memory.model.rope.cos_sin]
        self.addresses = [*self.addresses, tuple(t.data_ptr() for t in tensors)]


def test_no_address_changes_in_a_hundred_steps_beside_churn(load: Load) -> None:
    Churning.addresses = []
    model = load("cpu")
    engine = engine_of(model, "none", runner=Churning, node_buckets=(1,))
    got = run(engine, tokens=101).token_ids
    assert got == run(eager_engine(model, "none"), tokens=101).token_ids
    found = graphs_of(engine).addresses  # type: ignore[attr-defined]
    assert len(found) >= 100 and len(set(found)) == 1


def test_a_number_baked_into_a_runners_step_is_found(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(load("torch"), "none")
    runner = graphs_of(engine)
    forward = runner.step.forward

    def with_the_true_length(shape: Any) -> None:
        live = runner.buffers.header().prefix_len + shape.rows
        forward(type(shape)(**{**vars(shape), "kv_bound": live, "exact_bound": True}))

    monkeypatch.setattr(runner.step, "forward", with_the_true_length)
    with pytest.raises(TwinError, match="captured"):
        run(engine)


def test_a_buffer_that_a_runner_exchanges_is_found(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(load("torch"), "none")
    runner = graphs_of(engine)
    launch = runner.launch

    def in_new_memory(n_bucket: int) -> None:
        runner.memory.logits = torch.empty_like(runner.memory.logits)
        launch(n_bucket)

    monkeypatch.setattr(runner, "launch", in_new_memory)
    with pytest.raises(TwinError, match="captured"):
        run(engine)


def test_a_wait_in_a_runners_step_is_found(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(load("torch"), "none")
    runner = graphs_of(engine)
    commit = runner.step.commit

    def looks(shape: Any) -> None:
        if int(runner.buffers.view(shape.rows).n_commit) > 0:
            commit(shape)

    monkeypatch.setattr(runner.step, "commit", looks)
    with pytest.raises(TwinError, match="waits for the device"):
        run(engine)


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.3, "frequency_penalty": 0.2},
        {"logit_bias": {7: 4.0}, "min_new_tokens": 5, "temperature": 0.9, "seed": 5},
        {"logprobs": 3},
        {"verification": "recursive", "temperature": 0.9, "seed": 2},
        {"logits_processor": lambda ids, logits: logits.roll(1)},
    ],
    ids=["penalties", "bias", "logprobs", "recursive", "processor"],
)
def test_requests_with_rules_equal_eager(load: Load, fields: dict[str, Any]) -> None:
    """A request's own tensors are in no graph: tokens are chosen behind a graph of the forward."""
    model = load("cpu")
    engine = engine_of(model)
    expected = list(eager_engine(model).generate(PROMPT, params(fields)))
    for _ in range(2):
        generation = engine.generate(PROMPT, params(fields))
        got = list(generation)
        assert [step.token_ids for step in got] == [step.token_ids for step in expected]
        for ours, theirs in zip(got, expected, strict=True):
            for a, b in zip(ours.logprobs or (), theirs.logprobs or (), strict=True):
                assert a.token_id == b.token_id and a.logprob == pytest.approx(b.logprob, abs=1e-5)
    stats = generation.stats
    assert stats.graph_steps == stats.steps
    waits = {"logprobs": 2, "verification": 2}
    if "logits_processor" in fields:
        assert stats.host_syncs == stats.steps + stats.tokens
    else:
        assert stats.host_syncs == stats.steps * max([1, *(waits.get(name, 1) for name in fields)])
    modes = {shape.mode for shape in graphs_of(engine).shapes}
    own = "verification" in fields or "logits_processor" in fields
    assert modes == ({"sample"} if "verification" in fields else {"greedy"} if own else {None})


def params(fields: dict[str, Any]) -> SamplingParams:
    return SamplingParams(max_new_tokens=8, **fields)


@pytest.mark.parametrize(
    "drafter",
    [
        "prompt-lookup",
        "token-recycling:max_candidate_nodes=15",
        "hybrid:max_candidate_nodes=12,max_draft_nodes=6,prompt_outputs=true",
        "suffix:max_candidate_nodes=15",
        "lookahead:level=3,window=4,guesses=3",
        "ptd:width=3,depth=3,expansion=top-p,max_draft_nodes=9,max_candidate_nodes=10",
    ],
)
def test_every_drafter_is_served(load: Load, drafter: str) -> None:
    model = load("cpu", "bfloat16")
    expected = run(eager_engine(model, "none"), tokens=24).token_ids
    got = run(engine_of(model, drafter), tokens=24)
    assert got.token_ids == expected and got.stats.graph_steps > 0


def test_a_turn_of_a_chat_takes_its_prefix_from_the_cache(load: Load) -> None:
    model = load("cpu")
    engine = engine_of(model)
    engine.reuse_prefix = True
    first = run(engine).token_ids
    turn = [*PROMPT, *first, 17, 4]
    got = run(engine, turn)
    assert got.stats.reused_tokens > len(PROMPT)
    assert got.token_ids == run(eager_engine(model), turn).token_ids


def test_a_rotary_table_that_depends_on_the_prompt_is_read_where_it_lies(tmp_path: Path) -> None:
    rope = {"rope_parameters": tiny.ROPES["dynamic"], "max_position_embeddings": 32}
    made = tiny.save(tiny.build("llama3", seed=3, **rope), tmp_path / "model")
    model = load_model(made, dtype="float32", kernels="torch", max_seq_len=96)
    sizes: dict[str, Any] = {"max_seq_len": 96}
    engine = engine_of(model, kv_buckets=(96,), **sizes)
    for length in (60, 20, 40):  # each writes another table into the same memory
        prompt = [3 + i * 7 % 80 for i in range(length)]
        expected = run(eager_engine(model, **sizes), prompt, tokens=8).token_ids
        assert run(engine, prompt, tokens=8).token_ids == expected


def test_the_longest_context_is_filled(load: Load) -> None:
    model: CausalLM = load("cpu")
    engine = engine_of(model, max_seq_len=48, kv_buckets=(16, 48))
    expected = run(eager_engine(model, "none", max_seq_len=48), tokens=60).token_ids
    got = run(engine, tokens=60)
    assert got.token_ids == expected and len(got.token_ids) == 48 - len(PROMPT)
