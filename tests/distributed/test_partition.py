"""How a model is cut: the parts make the whole again, and what cannot be cut is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ptd_engine import LLM, ConfigError
from ptd_engine.checkpoint import open_checkpoint
from ptd_engine.model import ModelConfig
from ptd_engine.model.weights import expected_shapes
from ptd_engine.tensor_parallel.partition import Partition, head_rows
from ptd_engine.tensor_parallel.shards import ShardedCheckpoint


@pytest.mark.parametrize("family", ["llama3", "llama_bias", "qwen3"])
def test_the_parts_make_the_whole(model_dir: Callable[[str], Path], family: str) -> None:
    whole = open_checkpoint(model_dir(family))
    config = ModelConfig.from_hf(whole.config)
    partitions = [Partition(config, rank, 2) for rank in range(2)]
    parts = [ShardedCheckpoint(whole, partition) for partition in partitions]
    cut = 0
    for name in expected_shapes(config):
        tensor, pieces = whole.tensor(name), [part.tensor(name) for part in parts]
        where = partitions[0].cut(name)
        if where is not None:
            cut += 1
            assert torch.equal(torch.cat(pieces, where.dim), tensor)
        elif partitions[1].is_zero(name):
            assert torch.equal(pieces[0] + pieces[1], tensor) and not pieces[1].any()
        else:
            assert torch.equal(pieces[0], tensor) and torch.equal(pieces[1], tensor)
    matrices = 7 * config.num_layers + 1
    biases = 5 * config.num_layers if family == "llama_bias" else 0
    assert cut == matrices + biases


def test_a_rank_is_a_smaller_model(model_dir: Callable[[str], Path]) -> None:
    whole = open_checkpoint(model_dir("llama3"))
    config = ModelConfig.from_hf(whole.config)
    local = ModelConfig.from_hf(ShardedCheckpoint(whole, Partition(config, 1, 2)).config)
    assert (local.num_heads, local.num_kv_heads, local.intermediate_size) == (2, 1, 40)
    assert (local.head_dim, local.hidden_size, local.vocab_size) == (
        config.head_dim,
        config.hidden_size,
        config.vocab_size,
    )


@pytest.mark.parametrize(("vocabulary", "ranks"), [(97, 2), (97, 4), (10, 3)])
def test_every_token_id_is_one_ranks(vocabulary: int, ranks: int) -> None:
    rows = [head_rows(vocabulary, rank, ranks) for rank in range(ranks)]
    assert [token for part in rows for token in part] == list(range(vocabulary))
    assert max(map(len, rows)) == -(-vocabulary // ranks)


@pytest.mark.parametrize("ranks", [3, 4, 0, "2"])
def test_heads_that_do_not_divide_are_refused(model_dir: Callable[[str], Path], ranks: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"tensor_parallel={ranks!r}.*num_key_value_heads=2.*: 1, 2\."
    ):
        LLM.from_pretrained(str(model_dir("llama3")), device="cpu", tensor_parallel=ranks)


def test_quantised_weights_are_refused(model_dir: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="dtype='int8'.*float32.*tensor_parallel"):
        LLM.from_pretrained(str(model_dir("llama3")), device="cpu", dtype="int8", tensor_parallel=2)
