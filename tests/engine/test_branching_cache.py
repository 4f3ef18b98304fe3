"""Scattered accepted rows, dead rows and padding on models, with every backend of the CPU: the
cache is that of recomputation, and what a row may not see leaves no trace, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.conftest import CONTEXT
from torch import Tensor

from ptd_engine import _core
from ptd_engine.config import SamplingParams
from ptd_engine.engine import Engine
from ptd_engine.model import CausalLM, load_model
from ptd_engine.runner import EagerRunner
from ptd_engine.testing.compare import StepRunner, max_abs_diff
from ptd_engine.testing.forced import FixedBlocks

PROMPT = [5, 9, 11, 3, 9, 11, 3, 9]
PARAMS = {
    "greedy": SamplingParams(max_new_tokens=50, ignore_eos=True),
    "sampled": SamplingParams(max_new_tokens=50, ignore_eos=True, temperature=0.9, seed=3),
}
NAN, INF = float("nan"), float("inf")
BLOCKS = (3, 1, 4, 0, 5)

kernels = pytest.mark.parametrize("model", ["cpu", "torch"], indirect=True)


@pytest.fixture(scope="module")
def models(tiny_dir: Callable[[str], Path]) -> Callable[[str], CausalLM]:
    made: dict[str, CausalLM] = {}

    def get(backend: str) -> CausalLM:
        if backend not in made:
            made[backend] = load_model(
                tiny_dir("llama32"), dtype="float32", kernels=backend, max_seq_len=CONTEXT
            )
        return made[backend]

    return get


@pytest.fixture
def model(models: Callable[[str], CausalLM], request: pytest.FixtureRequest) -> CausalLM:
    return models(request.param)


class SpoilingRunner(EagerRunner):
    """Before each step, fills every cache row that it may not read, and its padding rows."""

    filler: float | None = None
    pad_token = 0

    def prefill(self, token_ids: Any, **where: Any) -> int:
        self._dead_from = 0
        self._spoil()
        self._dead_from = super().prefill(token_ids, **where)
        return self._dead_from

    def launch(self, n_bucket: int) -> None:
        header, plan = self.buffers.header(), self.buffers.view(n_bucket)
        self._spoil()
        plan.token_ids[header.n_nodes :] = self.pad_token
        super().launch(n_bucket)
        # The accepted path lies among these rows until the next step moves it.
        self._dead_from = header.prefix_len + header.n_nodes

    def _spoil(self) -> None:
        if self.filler is not None:
            self.cache.k[:, :, self._dead_from :] = self.filler
            self.cache.v[:, :, self._dead_from :] = self.filler


def engine_over(
    model: CausalLM,
    drafter: _core.Drafter,
    *,
    filler: float | None = None,
    pad_token: int = 0,
    buckets: tuple[int, ...] = (),
) -> Engine:
    runner = SpoilingRunner(
        model, max_seq_len=CONTEXT, max_nodes=1 + drafter.needs().max_nodes, node_buckets=buckets
    )
    runner.filler, runner.pad_token = filler, pad_token
    return Engine(runner, drafter, max_seq_len=CONTEXT, vocab_size=model.config.vocab_size)


def run(engine: Engine, params: SamplingParams) -> tuple[list[int], Tensor, Tensor, Tensor]:
    """Tokens, committed keys and values, and the hidden states of every step's rows."""
    runner = engine.runner
    assert isinstance(runner, EagerRunner)
    generation = engine.generate(PROMPT, params)
    hidden = [
        runner.activations.normed[: runner.buffers.header().n_nodes].clone() for _ in generation
    ]
    # What the last step accepted is not in place yet.
    rows = runner.buffers.header().prefix_len + 1
    k, v = (half[:, :, :rows].clone() for half in (runner.cache.k, runner.cache.v))
    return generation.token_ids, k, v, torch.cat(hidden)


def plain(model: CausalLM, params: SamplingParams) -> list[int]:
    return run(engine_over(model, _core.AutoregressiveDrafter()), params)[0]


@kernels
@pytest.mark.parametrize("decoys", [[], [40], [40, 41, 42]])
def test_branching_steps_leave_the_cache_of_recomputation(
    model: CausalLM, decoys: list[int]
) -> None:
    expected = plain(model, PARAMS["greedy"])
    engine = engine_over(model, FixedBlocks(expected, BLOCKS, decoys=decoys))
    token_ids, k, v, _ = run(engine, PARAMS["greedy"])
    assert token_ids == expected
    fresh = StepRunner(model, CONTEXT)
    fresh.prefill([*PROMPT, *expected][: k.shape[2]])
    for ours, theirs in ((k, fresh.cache.k), (v, fresh.cache.v)):
        theirs = theirs[:, :, : k.shape[2]]
        assert max_abs_diff(ours, theirs) <= (0.0 if model.ops.record is not None else 1e-5)


@kernels
@pytest.mark.parametrize("mode", PARAMS)
@pytest.mark.parametrize("buckets", [(), (1, 8, 16, 32)], ids=["exact", "padded"])
def test_dead_and_padding_rows_leave_no_trace(
    model: CausalLM, buckets: tuple[int, ...], mode: str
) -> None:
    output = plain(model, PARAMS[mode])

    def found(filler: float, pad_token: int) -> tuple[list[int], Tensor, Tensor, Tensor]:
        drafter = FixedBlocks(output, BLOCKS, decoys=[40, 41])
        engine = engine_over(model, drafter, filler=filler, pad_token=pad_token, buckets=buckets)
        return run(engine, PARAMS[mode])

    expected = found(0.0, 0)
    assert expected[0] == output and torch.isfinite(expected[3]).all()
    for filler, pad_token in ((NAN, 0), (INF, 41), (-INF, 7), (3e38, 96)):
        got = found(filler, pad_token)
        assert got[0] == output
        for ours, theirs in zip(got[1:], expected[1:], strict=True):
            assert torch.equal(ours, theirs)


@kernels
@pytest.mark.parametrize("n", [1, 5])
def test_padding_is_finite(model: CausalLM, n: int) -> None:
    results = []
    for token in (0, 50):
        runner = StepRunner(model)
        runner.prefill(PROMPT)
        runner.cache.k[:, :, len(PROMPT) :] = NAN
        runner.cache.v[:, :, len(PROMPT) :] = NAN
        tree = [-1, 0, 0, 1, 3][:n]
        results.append(runner.step(range(20, 20 + n), tree, pad_to=16, pad_token=token).clone())
        assert torch.isfinite(runner.buffers.normed[:16]).all()
    assert torch.equal(*results)


@kernels
def test_candidates_and_drafts_do_not_see_each_other(model: CausalLM) -> None:
    parents = [-1, 0, 1, 0, 0, 4, 5, 4]  # candidates 1-3, draft tree 4-7
    hidden = []
    for changed in ((), (1, 2, 3), (4, 5, 6, 7)):
        runner = StepRunner(model)
        runner.prefill(PROMPT)
        runner.step([t + 1 if i in changed else t for i, t in enumerate(range(20, 28))], parents)
        hidden.append(runner.buffers.normed[:8].clone())
    assert torch.equal(hidden[0][[0, 4, 5, 6, 7]], hidden[1][[0, 4, 5, 6, 7]])
    assert torch.equal(hidden[0][:4], hidden[2][:4])
    assert not torch.equal(hidden[0][1:4], hidden[1][1:4])


@kernels
def test_a_row_is_its_path_run_alone_whatever_stands_beside_it(model: CausalLM) -> None:
    # Wide siblings before a deep branch: a position is a depth, not an index.
    parents = [-1, 0, 0, 0, 1, 2, 3, 6, 7, 8, 2]
    tokens = list(range(20, 31))
    runner = StepRunner(model)
    runner.prefill(PROMPT)
    together = runner.step(tokens, parents).clone()
    for node in range(len(parents)):
        path, at = [tokens[node]], node
        while (at := parents[at]) >= 0:
            path.insert(0, tokens[at])
        chain = StepRunner(model)
        chain.prefill(PROMPT)
        alone = chain.step(path)[-1]
        # Logits up to 30: torch's rounding for other row counts.
        assert max_abs_diff(together[node], alone) <= (0.0 if model.ops.record else 3e-5)
