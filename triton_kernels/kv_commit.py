"""Moves the accepted rows of a step to the end of the committed prefix, in place.

Row prefix_len - n_commit + i takes row commit_src[i], for i < n_commit. Sources rise and none lies
below its destination, so a walk with rising i overwrites no row that is still to be read. Every
element of a row stays with one thread, which reads it before it writes it: no barrier is needed.
Grid: (L Hkv), keys and values in one program. Traffic: 4 L Hkv D elements an accepted
token, 4 * 32 * 8 * 128 * 2 = 262 kB for Llama-3.1-8B; the time is that of the chain of loads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .target import LaunchError, require_dense_rows
from .variants import Variant


@triton.jit
def kv_commit_kernel(
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    commit_src: tl.tensor,
    prefix_len: tl.tensor,
    n_commit: tl.tensor,
    layer_stride: tl.tensor,
    head_stride: tl.tensor,
    row_stride: tl.tensor,
    kv_heads: tl.tensor,
    capacity: tl.tensor,
    head_dim: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """All rows of one layer and head, in rising order."""
    layer = (tl.program_id(0) // kv_heads).to(tl.int64)
    head = (tl.program_id(0) % kv_heads).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < head_dim
    at = layer * layer_stride + head * head_stride + column
    count = tl.load(n_commit)
    first = tl.load(prefix_len) - count
    for i in range(count):
        source = tl.minimum(tl.load(commit_src + i), capacity - 1).to(tl.int64) * row_stride
        target = (first + i).to(tl.int64) * row_stride
        key = tl.load(k_cache + at + source, mask=inside)
        value = tl.load(v_cache + at + source, mask=inside)
        tl.store(k_cache + at + target, key, mask=inside)
        tl.store(v_cache + at + target, value, mask=inside)


def kv_commit(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    commit_src: torch.Tensor,
    prefix_len: torch.Tensor,
    n_commit: torch.Tensor,
) -> None:
    """Launch.

    k_cache, v_cache [L, Hkv, S, D] of the same strides, updated; commit_src [P] int32, rising over
    the first n_commit; prefix_len, n_commit [1] int32, read on the device.
    """
    layers, kv_heads, capacity, head_dim = k_cache.shape
    if k_cache.stride() != v_cache.stride():
        raise LaunchError(f"keys and values lie apart: {k_cache.stride()} and {v_cache.stride()}")
    require_dense_rows("kv_commit", k_cache=k_cache, commit_src=commit_src)
    block = triton.next_power_of_2(head_dim)
    kv_commit_kernel[(layers * kv_heads,)](
        k_cache,
        v_cache,
        commit_src,
        prefix_len,
        n_commit,
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        kv_heads,
        capacity,
        head_dim,
        BLOCK=block,
        num_warps=1,
        num_stages=1,  # a prefetched row could be one that the walk is about to write
    )


def variants() -> list[Variant]:
    """One form a dtype, of the widest head."""
    return [
        Variant(
            dtype,
            kv_commit_kernel,
            {
                **dict.fromkeys(("k_cache", "v_cache"), f"*{dtype}"),
                **dict.fromkeys(("commit_src", "prefix_len", "n_commit"), "*i32"),
                **dict.fromkeys(("layer_stride", "head_stride"), "i64"),
                **dict.fromkeys(("row_stride", "kv_heads", "capacity", "head_dim"), "i32"),
            },
            {"BLOCK": 256},
            num_warps=1,
            num_stages=1,
            aligned=("k_cache", "v_cache", "layer_stride", "head_stride", "row_stride"),
        )
        for dtype in ("bf16", "fp16", "fp32")
    ]
