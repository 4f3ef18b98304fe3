"""Which law the tokens have, whatever the trees: that of the processed logits. What a seed does."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from reference.chi_square import p_value
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ptd_engine import SamplingParams, _core
from ptd_engine.kernels import select_ops
from ptd_engine.testing.forced import FixedTrees

from .logit_tables import drafters, engine_over, run, table_model

DRAWS = 200_000
VOCAB = 8
WARPERS: dict[str, tuple[dict[str, float], list[Any]]] = {
    "plain": ({}, []),
    "top_k": ({"top_k": 3}, [TopKLogitsWarper(3)]),
    "top_p": ({"top_p": 0.8}, [TopPLogitsWarper(0.8)]),
    "min_p": ({"min_p": 0.1}, [MinPLogitsWarper(0.1)]),
    "all": (
        {"top_k": 6, "top_p": 0.9, "min_p": 0.05},
        [TopKLogitsWarper(6), TopPLogitsWarper(0.9), MinPLogitsWarper(0.05)],
    ),
}


def random_tree(seed: int) -> tuple[list[int], list[int]]:
    """Tokens and parents of a tree over VOCAB, the root first."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 9))
    parents = [-1, *(int(rng.integers(0, row)) for row in range(1, size))]
    tokens = [0]
    for row in range(1, size):
        taken = {tokens[i] for i in range(1, row) if parents[i] == parents[row]}
        tokens.append(int(rng.choice([t for t in range(VOCAB) if t not in taken])))
    return tokens, parents


@cache
def uniforms(position: int, count: int = DRAWS) -> Tensor:
    """[count] fp32: the numbers of that many seeds at one position."""
    return torch.tensor([_core.philox_uniform(seed, position) for seed in range(count)])


@pytest.mark.parametrize("kernels", ["torch", "cpu"])
@pytest.mark.parametrize("warper", WARPERS)
def test_first_and_second_token_have_the_processed_law(warper: str, kernels: str) -> None:
    """Every row drawn by `select`, then the walk. Drafts are points, not samples of a law."""
    settings, warpers = WARPERS[warper]
    tree_seed = [*WARPERS].index(warper) + 10 * (kernels == "cpu")
    tokens, parents = random_tree(tree_seed)
    rows = len(tokens)
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    logits = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(tree_seed)) * 1.5
    table = logits[tokens]  # a row's logits follow from its token
    chain = LogitsProcessorList([TemperatureLogitsWarper(0.8), *warpers])
    law = chain(torch.zeros(1, 1, dtype=torch.long), logits.clone()).double().softmax(-1)

    sampling = [settings.get("top_k", 0), settings.get("top_p", 1), settings.get("min_p", 0), 0]
    ops = select_ops(kernels)

    def draw(of: Tensor, depth: int) -> Tensor:
        """Tokens of DRAWS seeds at one position; of [DRAWS, VOCAB] logits."""
        out = torch.empty(DRAWS, 1, dtype=torch.int32)
        ops.select(
            of.contiguous(),
            torch.full((DRAWS,), 0.8),
            uniforms(7 + depth),
            torch.tensor(sampling, dtype=torch.float32),
            n_verify=DRAWS,
            mode="filter" if warpers else "sample",
            out=out,
        )
        return out[:, 0]

    drawn = torch.stack(
        [draw(table[row].expand(DRAWS, VOCAB), depths[row]) for row in range(rows)], 1
    )
    first, second = Counter[int](), Counter[tuple[int, int]]()
    # Where the step ends with its first token, the second one is the root of the next step.
    after = draw(logits[drawn[:, 0].long()], 1)
    both = torch.cat([drawn, after[:, None]], 1).long()
    digits = VOCAB ** torch.arange(rows + 1)
    for code, times in zip(*(both @ digits).unique(return_counts=True), strict=True):
        *row_tokens, later = (int(code) // digits % VOCAB).tolist()
        path = _core.verify_walk(tokens, parents, row_tokens, rows)
        one = row_tokens[0]
        two = row_tokens[path[0]] if path else later
        first[one] += int(times)
        second[(one, two)] += int(times)
    expected_first = {t: float(law[0, t]) for t in range(VOCAB)}
    expected = {(a, b): float(law[0, a] * law[a, b]) for a in range(VOCAB) for b in range(VOCAB)}
    assert p_value(first, expected_first) > 1e-4
    assert p_value(second, expected) > 1e-4


def test_whole_requests_have_the_law_with_penalties_too() -> None:
    """Two tokens of 600 seeds, drafted for by a tree that holds the likeliest."""
    logits = np.array([0.5, 1.5, 1.0, -0.5, 0.0, 0.9, -1.0, 1.2], np.float32)
    engine = engine_over(
        lambda context: logits, FixedTrees([(1, -1), (7, -1), (1, 0)]), vocab=8, eos=()
    )
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(600):
        params = SamplingParams(
            max_new_tokens=2, temperature=1.0, seed=seed, presence_penalty=2.0, logit_bias={3: 1.0}
        )
        counts[tuple(run(engine, params, [4, 4]).token_ids)] += 1
    biased = torch.tensor(logits).double()
    biased[3] += 1.0
    law = {}
    for a in range(8):
        then = biased.clone()
        then[a] -= 2.0
        for b in range(8):
            law[(a, b)] = float(biased.softmax(-1)[a] * then.softmax(-1)[b])
    assert p_value(counts, law) > 1e-4


@pytest.mark.parametrize("kernels", ["torch", "cpu"])
def test_rare_tokens_keep_their_probability(kernels: str) -> None:
    """Nothing filtered: a token that no short list holds appears as often as it should."""
    logits = torch.zeros(256)
    logits[:64] = 1.0
    logits[255] = -1.0
    share = float(logits.double().softmax(-1)[255])
    assert share == pytest.approx(1e-3, rel=0.05)
    count = 40_000
    out = torch.empty(count, 1, dtype=torch.int32)
    select_ops(kernels).select(
        logits.expand(count, 256).contiguous(),
        torch.ones(count),
        uniforms(3, count),
        torch.tensor([0.0, 1.0, 0.0, 0.0]),
        n_verify=count,
        mode="sample",
        out=out,
    )
    sigma = (share * (1 - share) / count) ** 0.5
    assert abs(float((out == 255).double().mean()) - share) < 4 * sigma


def test_a_seed_decides_and_earlier_requests_do_not() -> None:
    model = table_model(seed=5)

    def sample(engine: Any, seed: int) -> tuple[int, ...]:
        params = SamplingParams(max_new_tokens=20, temperature=1.0, seed=seed)
        return tuple(run(engine, params).token_ids)

    for name in ("none", "recycling", "random"):
        engine = engine_over(model, drafters([])[name], eos=())
        seven = sample(engine, 7)
        outputs = {sample(engine, seed) for seed in range(10)}
        assert len(outputs) >= 8
        assert sample(engine, 7) == seven
        run(engine, SamplingParams(max_new_tokens=4), [1, 2])
        assert sample(engine, 7) == seven
        assert sample(engine_over(model, drafters([])["none"], eos=()), 7) == seven


@pytest.mark.parametrize("kernels", ["torch", "cpu"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_candidate_is_the_argmax_and_ties_go_to_the_lowest_id(
    temperature: float, kernels: str
) -> None:
    def next_logits(context: list[int]) -> list[float]:
        return [3.0, 3.0, 0.0] if len(context) % 2 else [1.0, 3.0, 3.0]

    for seed in range(100):
        for extra in ({}, {"logit_bias": {0: 0.0}}) if seed < 10 else ({},):
            params = SamplingParams(
                max_new_tokens=2, temperature=temperature, top_k=1, seed=seed, **extra
            )
            engine = engine_over(
                next_logits, FixedTrees([(1, -1), (0, -1)]), vocab=3, eos=(), kernels=kernels
            )
            assert run(engine, params, [2]).token_ids == [0, 1]


@pytest.mark.parametrize("kernels", ["torch", "cpu"])
@pytest.mark.parametrize(
    "settings",
    [
        *({"temperature": t} for t in (0.0, 1e-45, 1e-9, 1e-6, 3e-4)),
        {"temperature": 1.0, "top_p": 1e-9},
        {"temperature": 1.0, "top_p": 1e-4},
        {"temperature": 1.0, "min_p": 1.0},
    ],
    ids=str,
)
def test_the_smallest_temperatures_and_nuclei_are_greedy(
    settings: dict[str, float], kernels: str
) -> None:
    engine = engine_over(
        lambda context: [10.0, 9.0, -100.0], drafters([], 3)["paper"], vocab=3, kernels=kernels
    )
    for seed in range(5):
        params = SamplingParams(max_new_tokens=5, seed=seed, presence_penalty=0.0, **settings)
        assert run(engine, params, [1]).token_ids == [0] * 5
