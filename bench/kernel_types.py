"""Shapes of models, and what one timed operation is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ptd_engine.kernels import Ops

Run = Callable[[], None]


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a layer, and of a head that may be cut to what fits."""

    name: str
    hidden: int
    inner: int
    q_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    layers: int

    @property
    def qkv(self) -> int:
        """Outputs of the fused projection."""
        return (self.q_heads + 2 * self.kv_heads) * self.head_dim


SHAPES = {
    "demo": ModelShape("demo", 576, 1536, 9, 3, 64, 49152, 30),
    # One layer of Llama-3.1-8B; an eighth of its output matrix and of its cache's layers.
    "8b": ModelShape("8b", 4096, 14336, 32, 8, 128, 16032, 4),
    "tiny": ModelShape("tiny", 64, 96, 4, 2, 16, 320, 2),
}


@dataclass(frozen=True)
class Prepared:
    """An operation on inputs of its own.

    Attributes:
        runs: the same work on each copy of its inputs; they write the same outputs.
        outputs: what they wrote.
    """

    runs: Sequence[Run]
    outputs: Callable[[], Tensor]


@dataclass(frozen=True)
class Case:
    """One operation on one shape.

    Attributes:
        nbytes: read and written, each once, in the dtype that is timed.
        prepare: (ops, dtype) -> inputs made from one seed, rounded to the timed dtype first.
        chooses: the outputs are the chosen ids, to be judged by their logits.
    """

    op: str
    detail: str
    rows: int
    nbytes: int
    prepare: Callable[[Ops, torch.dtype], Prepared]
    chooses: bool = False
