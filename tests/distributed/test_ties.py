"""Ties between the ranks' parts of the vocabulary: rank 0 decides alone, and no rank disagrees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ptd_engine import SamplingParams
from ptd_engine.engine import Engine
from ptd_engine.model import load_model
from ptd_engine.tensor_parallel import start
from ptd_engine.testing import tiny

VOCABULARY, CONTEXT, TOKENS = 260, 128, 40
HALF = VOCABULARY // 2  # rank 0 has the tokens below, rank 1 the others
PROMPT = [5, 9, 33, 5, 9]


def written(engine: Engine, params: SamplingParams) -> list[int]:
    return [token for step in engine.generate(PROMPT, params) for token in step.token_ids]


@pytest.mark.parametrize("apart", [0.0, 1e-6])
def test_every_choice_is_a_tie_between_two_ranks(
    apart: float, tmp_path: Path, engine_over: Callable[[Any, str], Engine]
) -> None:
    model = tiny.build("llama32", seed=3, vocab_size=VOCABULARY)
    with torch.no_grad():  # tied embeddings: a token of rank 1 reads and weighs as its twin does
        rows = model.get_input_embeddings().weight
        rows[HALF:] = rows[:HALF] * (1.0 + apart)
    path = tiny.save(model, tmp_path / "model")
    params = SamplingParams(max_new_tokens=TOKENS, ignore_eos=True)
    alone = load_model(path, dtype="float32", kernels="torch", max_seq_len=CONTEXT)
    expected = written(engine_over(alone, "none"), params)
    ranks = start(
        path,
        2,
        dtype="float32",
        device=torch.device("cpu"),
        kernels="torch",
        max_seq_len=CONTEXT,
        num_threads=1,
        timeout_s=60.0,
    )
    try:
        for drafter in ("none", "ptd", "hybrid"):
            found = written(engine_over(ranks, drafter), params)
            assert len(found) == TOKENS
            assert [token % HALF for token in found] == [token % HALF for token in expected]
            if apart == 0.0:
                assert found == expected
    finally:
        ranks.close()
