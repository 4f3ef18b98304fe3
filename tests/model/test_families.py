"""Every family against transformers: prefill, decoding token by token, a branching tree."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from ptd_engine.model import CausalLM
from ptd_engine.testing import tiny
from ptd_engine.testing.compare import StepRunner, max_abs_diff

from .conftest import Pair
from .reference import BRANCHING, TOLERANCE, decoded_logits, full_logits, path_to

families = pytest.mark.parametrize("family", sorted(tiny.FAMILIES))


@families
@pytest.mark.parametrize("chunk", [0, 7])
def test_prefill_equals_transformers(
    family: str, chunk: int, make_pair: Callable[..., Pair], tokens: list[int]
) -> None:
    reference, model = make_pair(family)
    ours = StepRunner(model).prefill(tokens[:50], chunk)
    assert max_abs_diff(ours, full_logits(reference, tokens[:50])) <= TOLERANCE


@families
@pytest.mark.parametrize("exact_bound", [True, False])
def test_decoding_equals_transformers(
    family: str, exact_bound: bool, make_pair: Callable[..., Pair], tokens: list[int]
) -> None:
    reference, model = make_pair(family)
    runner = StepRunner(model)
    runner.prefill(tokens[:20])
    rows = []
    for token in tokens[20:32]:
        rows.append(runner.step([token], [-1], exact_bound=exact_bound))
        runner.length += 1
    expected = decoded_logits(reference, tokens[:20], tokens[20:32])
    assert max_abs_diff(torch.cat(rows), expected) <= TOLERANCE


@families
@pytest.mark.parametrize("exact_bound", [True, False])
def test_every_tree_node_equals_its_path_run_alone(
    family: str, exact_bound: bool, make_pair: Callable[..., Pair], tokens: list[int]
) -> None:
    reference, model = make_pair(family)
    runner = StepRunner(model)
    prefix, nodes = tokens[:20], tokens[20 : 20 + len(BRANCHING)]
    runner.prefill(prefix)
    ours = runner.step(nodes, BRANCHING, exact_bound=exact_bound)
    for node in range(len(BRANCHING)):
        alone = prefix + [nodes[i] for i in path_to(node, BRANCHING)]
        assert max_abs_diff(ours[node], full_logits(reference, alone)[-1]) <= TOLERANCE, node


def _shuffled(parents: list[int], seed: int) -> list[int]:
    """A random topological order of the tree that keeps node 0 first."""
    generator, order, ready = random.Random(seed), [0], [i for i, p in enumerate(parents) if p == 0]
    while ready:
        node = ready.pop(generator.randrange(len(ready)))
        order.append(node)
        ready += [i for i, p in enumerate(parents) if p == node]
    return order


@pytest.mark.parametrize("seed", range(5))
def test_order_of_siblings_does_not_change_a_node(
    seed: int, make_pair: Callable[..., Pair], tokens: list[int]
) -> None:
    _, model = make_pair("qwen3")
    runner = StepRunner(model)
    runner.prefill(tokens[:20])
    nodes = tokens[20 : 20 + len(BRANCHING)]
    plain = runner.step(nodes, BRANCHING).clone()
    order = _shuffled(BRANCHING, seed)
    assert order != sorted(order)
    parents = [-1 if BRANCHING[i] < 0 else order.index(BRANCHING[i]) for i in order]
    permuted = runner.step([nodes[i] for i in order], parents)
    assert max_abs_diff(permuted, plain[order]) <= 1e-5


def test_tree_wider_than_one_mask_word(make_pair: Callable[..., Pair], tokens: list[int]) -> None:
    reference, model = make_pair("llama3", max_position_embeddings=256)
    runner = StepRunner(model)
    runner.prefill(tokens[:5])
    generator = random.Random(1)
    parents = [-1, *(generator.randrange(max(0, i - 9), i) for i in range(1, 90))]
    nodes = [generator.randrange(3, 97) for _ in parents]
    ours = runner.step(nodes, parents)
    for node in (0, 1, 62, 63, 64, 65, 89):
        alone = tokens[:5] + [nodes[i] for i in path_to(node, parents)]
        assert max_abs_diff(ours[node], full_logits(reference, alone)[-1]) <= TOLERANCE, node


def _commit(model: CausalLM, runner: StepRunner, path: list[int]) -> None:
    source = torch.tensor([runner.length + i for i in path], dtype=torch.int32)
    runner.length += len(path)
    model.ops.kv_commit(
        runner.cache.k,
        runner.cache.v,
        source,
        torch.tensor([runner.length], dtype=torch.int32),
        torch.tensor([len(path)], dtype=torch.int32),
    )


def test_cache_after_branching_steps_equals_recomputation(
    make_pair: Callable[..., Pair], tokens: list[int]
) -> None:
    reference, model = make_pair("qwen2")
    runner = StepRunner(model)
    runner.prefill(tokens[:8])
    text = tokens[:8]
    generator = random.Random(5)
    for path in ([0, 1, 4, 7], [0, 3, 11, 12, 13, 14], [0], [0, 2, 9, 10]):
        nodes = [generator.randrange(3, 97) for _ in BRANCHING]
        ours = runner.step(nodes, BRANCHING)[path[-1]].clone()
        _commit(model, runner, path)
        text = text + [nodes[i] for i in path]
        assert max_abs_diff(ours, full_logits(reference, text)[-1]) <= TOLERANCE
        fresh = StepRunner(model)
        fresh.prefill(text)
        assert fresh.length == runner.length
        for mine, theirs in ((runner.cache.k, fresh.cache.k), (runner.cache.v, fresh.cache.v)):
            assert max_abs_diff(mine[:, :, : len(text)], theirs[:, :, : len(text)]) <= 1e-5


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 3e38])
def test_padding_and_dead_rows_leave_no_trace(
    poison: float, make_pair: Callable[..., Pair], tokens: list[int]
) -> None:
    _, model = make_pair("qwen25")
    results = []
    for pad_token, filler in ((0, 0.0), (41, poison)):
        runner = StepRunner(model)
        runner.prefill(tokens[:12])
        runner.cache.k[:, :, 12:] = filler
        runner.cache.v[:, :, 12:] = filler
        step = runner.step(
            tokens[12:17], [-1, 0, 0, 1, 3], pad_to=16, pad_token=pad_token, slack=20
        )
        assert torch.isfinite(runner.buffers.normed[:16]).all()
        results.append(step.clone())
    assert torch.equal(*results)


def test_draft_rows_do_not_see_candidate_rows(
    make_pair: Callable[..., Pair], tokens: list[int]
) -> None:
    _, model = make_pair("llama32")
    parents = [-1, 0, 1, 0, 0, 4, 5, 4]  # candidates 1-3, draft tree 4-7
    logits = []
    for changed in ((), (1, 2, 3), (4, 5, 6, 7)):
        runner = StepRunner(model)
        runner.prefill(tokens[:12])
        nodes = [t + 1 if i in changed else t for i, t in enumerate(tokens[12:20])]
        logits.append(runner.step(nodes, parents).clone())
    assert torch.equal(logits[0][[0, 4, 5, 6, 7]], logits[1][[0, 4, 5, 6, 7]])
    assert torch.equal(logits[0][:4], logits[2][:4])
    assert not torch.equal(logits[0][1:4], logits[1][1:4])


@pytest.mark.parametrize("family", ["llama31", "qwen25", "qwen3"])
def test_bfloat16_is_as_near_to_fp32_as_transformers_bfloat16(
    family: str, tmp_path: object, tokens: list[int]
) -> None:
    from pathlib import Path

    from ptd_engine.model import load_model
    from ptd_engine.testing.compare import within_reference_noise

    exact = tiny.build(family)
    directory = tiny.save(exact, Path(str(tmp_path)) / "m")
    model = load_model(directory, dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    ours = StepRunner(model).prefill(tokens[:50])
    rounded = exact.to(torch.bfloat16)
    theirs = full_logits(rounded, tokens[:50])
    expected = full_logits(tiny.build(family), tokens[:50])
    assert within_reference_noise(ours, theirs, expected)
