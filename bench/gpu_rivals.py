"""Attention of others, on the inputs of a tree: what our kernels' times are set beside.

Each maker takes the inputs and returns a call that computes the step. A maker may raise: then the
reason stands in the document in place of a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Attend = Callable[[], Tensor]


@dataclass(frozen=True)
class AttentionInputs:
    """One case's tensors, on its device.

    Attributes:
        q: [N, Hq, D].
        k, v: [Hkv, S, D]; rows from `live` on are finite, and nobody's business.
        words: [N, W] int64, the ancestor mask.
        visible: [N, T] bool, T = live rounded up to 16: the same as a dense mask.
        prefix_len: [1] int32.
        live: prefix and N together.
        parents: of the tree.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    words: Tensor
    visible: Tensor
    prefix_len: Tensor
    live: int
    parents: list[int]

    @property
    def scale(self) -> float:
        """Of the scores."""
        return float(self.q.shape[2] ** -0.5)


@dataclass(frozen=True)
class Rival:
    """An attention of someone else's.

    Attributes:
        make: inputs -> a call that returns [N, Hq D].
        tree: whether it takes the tree; else it attends a chain, as decoding without a tree would.
    """

    make: Callable[[AttentionInputs], Attend]
    tree: bool = True


def sdpa(inputs: AttentionInputs) -> Attend:
    """torch's SDPA with a dense mask: the heads of a group stacked, so that any backend serves."""
    n, heads, dim = inputs.q.shape
    kv_heads, total = inputs.k.shape[0], inputs.visible.shape[1]
    group = heads // kv_heads
    bias = torch.zeros(inputs.visible.shape, dtype=inputs.q.dtype, device=inputs.q.device)
    bias = bias.masked_fill_(~inputs.visible, float("-inf")).repeat(group, 1)
    k, v = inputs.k[None, :, :total], inputs.v[None, :, :total]
    q = inputs.q.view(n, kv_heads, group, dim).permute(1, 2, 0, 3)
    q = q.reshape(1, kv_heads, group * n, dim).contiguous()

    def attend() -> Tensor:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=inputs.scale)
        return out.view(kv_heads, group, n, dim).permute(2, 0, 1, 3).reshape(n, heads * dim)

    return attend


@cache
def _flex(device_type: str) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    # fullgraph: past dynamo's limit of shapes an error, not the slow form that is meant for tests.
    compiled = torch.compile(flex_attention, fullgraph=True)
    return compiled if device_type == "cuda" else flex_attention


def flex(inputs: AttentionInputs) -> Attend:
    """torch's FlexAttention: the dense mask as a mask_mod, blocks that hold nothing left out."""
    from torch.nn.attention.flex_attention import create_block_mask

    n, total = inputs.visible.shape
    visible = inputs.visible

    def mask_mod(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return visible[row, key]

    blocks = create_block_mask(mask_mod, None, None, n, total, device=str(inputs.q.device))
    q = inputs.q.transpose(0, 1)[None].contiguous()
    k, v = inputs.k[None, :, :total], inputs.v[None, :, :total]
    attention = _flex(inputs.q.device.type)

    def attend() -> Tensor:
        out = attention(q, k, v, block_mask=blocks, scale=inputs.scale, enable_gqa=True)
        return out[0].transpose(0, 1).reshape(n, -1)  # type: ignore[no-any-return]

    return attend


def flash_attn(inputs: AttentionInputs) -> Attend:
    """flash-attn's decoding over a cache; it has no tree mask and attends a chain."""
    from flash_attn import flash_attn_with_kvcache

    k, v = (x[:, : inputs.live].transpose(0, 1)[None] for x in (inputs.k, inputs.v))
    q, n = inputs.q[None], inputs.q.shape[0]
    options = {"softmax_scale": inputs.scale, "causal": True}
    lengths = torch.full((1,), inputs.live, dtype=torch.int32, device=q.device)

    def attend() -> Tensor:
        out = flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, **options)
        return out[0].reshape(n, -1)  # type: ignore[no-any-return]

    return attend


def flashinfer(inputs: AttentionInputs) -> Attend:
    """flashinfer's attention of one request with a mask of the caller's."""
    from flashinfer import single_prefill_with_kv_cache

    k, v = (x[:, : inputs.live].contiguous() for x in (inputs.k, inputs.v))
    mask = inputs.visible[:, : inputs.live].contiguous()
    options = {"custom_mask": mask, "kv_layout": "HND", "sm_scale": inputs.scale}

    def attend() -> Tensor:
        out = single_prefill_with_kv_cache(inputs.q, k, v, **options)
        return out.view(inputs.q.shape[0], -1)  # type: ignore[no-any-return]

    return attend


# SDPA goes with our own kernels; these take their turn when the rest is done.
LATER = {
    "flex": Rival(flex),
    "flash-attn, a chain": Rival(flash_attn, tree=False),
    "flashinfer": Rival(flashinfer),
}
