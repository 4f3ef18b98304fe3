"""Which part of every tensor a rank holds.

Queries, keys and values are cut by heads, whole key/value groups a rank; gate and up by the inner
size, one half each; the output matrix by token ids. `o_proj` and `down_proj` are cut along their
inputs, so that their ranks' products add up. Embedding and norms are on every rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ptd_engine.errors import ConfigError
from ptd_engine.model import ModelConfig

HEAD = "lm_head.weight"
_BY_HEADS = re.compile(r"\.self_attn\.([qkv])_proj\.(weight|bias)$")
_BY_INNER = re.compile(r"\.mlp\.(gate|up)_proj\.(weight|bias)$")
_BY_INPUT = re.compile(r"\.(self_attn\.o|mlp\.down)_proj\.weight$")
_ADDED_ONCE = re.compile(r"\.(self_attn\.o|mlp\.down)_proj\.bias$")


@dataclass(frozen=True)
class Cut:
    """A range of a tensor: start to stop of one of its dimensions."""

    dim: int
    start: int
    stop: int


@dataclass(frozen=True)
class Partition:
    """One rank's part of a model.

    Attributes:
        config: of the whole model.
        rank, ranks: which part of how many.
    """

    config: ModelConfig
    rank: int
    ranks: int

    def __post_init__(self) -> None:
        check_ranks(self.config, self.ranks)

    def cut(self, name: str) -> Cut | None:
        """What this rank reads of a tensor; None: all of it."""
        config = self.config
        if match := _BY_HEADS.search(name):
            heads = config.num_heads if match[1] == "q" else config.num_kv_heads
            return self._equal(0, heads * config.head_dim)
        if _BY_INNER.search(name):
            return self._equal(0, config.intermediate_size)
        if match := _BY_INPUT.search(name):
            attention = match[1] == "self_attn.o"
            inputs = config.num_heads * config.head_dim if attention else config.intermediate_size
            return self._equal(1, inputs)
        if name == HEAD:
            rows = head_rows(config.vocab_size, self.rank, self.ranks)
            return Cut(0, rows.start, rows.stop)
        return None

    def is_zero(self, name: str) -> bool:
        """Whether the tensor counts on rank 0 alone: a bias behind products that are added up."""
        return self.rank > 0 and _ADDED_ONCE.search(name) is not None

    def local(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The Hugging Face config of a model that has this rank's heads and inner size."""
        whole, ranks = self.config, self.ranks
        return {
            **config,
            "num_attention_heads": whole.num_heads // ranks,
            "num_key_value_heads": whole.num_kv_heads // ranks,
            "head_dim": whole.head_dim,
            "intermediate_size": whole.intermediate_size // ranks,
        }

    def _equal(self, dim: int, size: int) -> Cut:
        part = size // self.ranks
        return Cut(dim, self.rank * part, (self.rank + 1) * part)


def head_rows(vocab_size: int, rank: int, ranks: int) -> range:
    """The token ids whose logits a rank computes; parts differ by one id at most."""
    return range(vocab_size * rank // ranks, vocab_size * (rank + 1) // ranks)


def check_ranks(config: ModelConfig, ranks: object) -> int:
    """Return the number of ranks if the model can be cut into as many parts.

    Raises:
        ConfigError: not an integer from 1 on, or it does not divide the key/value heads and the
            inner size.
    """
    sizes = {
        "num_key_value_heads": config.num_kv_heads,
        "intermediate_size": config.intermediate_size,
    }
    fits = [
        n
        for n in range(1, config.num_kv_heads + 1)
        if all(size % n == 0 for size in sizes.values())
    ]
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks not in fits:
        named = " and ".join(f"{key}={size}" for key, size in sizes.items())
        raise ConfigError.for_field(
            "tensor_parallel",
            ranks,
            f"what divides {named} of this model: {', '.join(map(str, fits))}",
            "Every rank holds whole key/value heads and an equal part of each layer.",
        )
    return ranks
