"""What kernels are asked for: the question that every backend's probe answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ptd_engine.kernels.ops import WeightFormat


@dataclass(frozen=True)
class KernelRequest:
    """The needs of one model.

    Attributes:
        device: where its tensors are.
        dtype: of activations and cache, and of weights in format "float".
        head_dim: attention head size.
        weight_format: how matrices are stored once packed.
        num_threads: threads of CPU kernels; None takes torch's number.
        variant: what the user wrote behind the backend's name ("cpu:avx2"), "" if nothing.
        query_group: query heads that share a key/value head.
        kv_heads: key/value heads.
    """

    device: torch.device
    dtype: torch.dtype
    head_dim: int
    weight_format: WeightFormat = "float"
    num_threads: int | None = None
    variant: str = ""
    query_group: int = 1
    kv_heads: int = 1
