"""Attention of a token tree over a static cache: the launcher of the kernels.

out[i] = softmax(q[i] K^T scale) V over the committed prefix and the ancestors of i. Two launches in
either form:

- exact (the default): a row's bits depend on its position and on the keys and values it sees, not
  on the number of rows, their order in the tree, or kv_bound. A path of a tree has the bits of the
  same tokens decoded one by one. See tree_attention_prefix.py and tree_attention_tail.py.
- exact=False: the tree as a dense masked block, tree_attention_dense.py.

Nothing is read back from the device; the grids depend on shapes and on kv_bound.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from .attention_arguments import Arguments, room_for
from .attention_configs import AttentionConfig
from .target import EXACT, LaunchError
from .tree_attention_dense import combine_kernel, dense_kernel
from .tree_attention_prefix import prefix_kernel
from .tree_attention_tail import tail_kernel

MAX_NODES = 256


def workspace_numel(n: int, q_heads: int, head_dim: int, kv_bound: int, split: int) -> int:
    """fp32 elements that `tree_attention` needs as its workspace: enough for either form.

    The states of n rows: for each split that a prefix of kv_bound - n positions may touch, and for
    the tree. Rises with n at a constant length and with kv_bound, so the largest serves all.
    """
    slots = -(-max(0, kv_bound - n) // split) + 1
    return slots * n * q_heads * (head_dim + 2)


def tree_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    mask: Tensor,
    prefix_len: Tensor,
    kv_bound: int,
    scale: float,
    out: Tensor,
    *,
    split: int,
    workspace: Tensor | None = None,
    exact: bool = True,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    config: AttentionConfig | None = None,
) -> None:
    """Attention over the committed prefix and over ancestors within the step.

    Args:
        q: [N, Hq, D] bfloat16, float16 or float32, N up to 256.
        k_cache, v_cache: [Hkv, S, D], q's dtype or float8_e4m3fn.
        mask: [N, W] int64, bit j % 64 of word j // 64 of row i: i sees row j of the step.
        prefix_len: [1] int32.
        kv_bound: prefix_len + N or more, up to S.
        scale: above 0.
        out: [N, Hq D] as q, written.
        split: positions of a split (`choose_split`), the same in all calls whose bits are to agree.
        workspace: `workspace_numel` fp32 elements; None allocates them.
        exact: see the top of the file; always so for fp8 caches that the GPU cannot convert.
        k_scale, v_scale: what fp8 keys and values are to be multiplied with.
        config: the blocks, instead of the table's.

    Raises:
        LaunchError: shapes, dtypes or strides that no kernel serves.
    """
    a = Arguments.of(q, k_cache, v_cache, scale, out, split, k_scale, v_scale, config)
    fits = mask.shape == (a.n, -(-a.n // 64)) and mask.is_contiguous() and mask.dtype == torch.int64
    if not (fits and a.n <= MAX_NODES):
        held = f"{tuple(mask.shape)} of {mask.dtype}"
        allowed = f"contiguous [N, ceil(N / 64)] of torch.int64, N up to {MAX_NODES}"
        raise LaunchError(f"Triton attention: mask is {held}, allowed: {allowed}")
    numel = workspace_numel(a.n, a.q_heads, a.head_dim, kv_bound, split)
    workspace = room_for(workspace, numel, q)
    launch = _exact if exact or a.k.dtype == torch.uint8 else _dense
    launch(a, q, mask, prefix_len, kv_bound, v_scale, out, workspace)


def _states(a: Arguments, slots: int, workspace: Tensor) -> tuple[Tensor, Tensor]:
    """acc and stats within the workspace: what is behind slots * q_heads * n * D elements."""
    at = slots * a.n * a.q_heads * a.head_dim
    return workspace, workspace[at:]


def _exact(
    a: Arguments,
    q: Tensor,
    mask: Tensor,
    prefix_len: Tensor,
    kv_bound: int,
    v_scale: float,
    out: Tensor,
    workspace: Tensor,
) -> None:
    config = a.config
    splits = triton.cdiv(max(0, kv_bound - a.n), a.split)
    acc, stats = _states(a, splits, workspace)
    if splits:
        block = config.row_block(a.rows)
        prefix_kernel[triton.cdiv(a.rows, block), a.kv_heads, splits](
            q,
            a.k,
            a.v,
            prefix_len,
            acc,
            stats,
            a.rows,
            *a.strides,
            a.c,
            **a.shape_constants,
            BLOCK_M=block,
            num_warps=config.warps(block),
            num_stages=config.stages,
            **EXACT,
        )
    group_pad = triton.next_power_of_2(a.group)
    block = max(config.tail_block, group_pad)
    tail_kernel[a.n, a.kv_heads](
        q,
        a.k,
        a.v,
        mask,
        prefix_len,
        acc,
        stats,
        out,
        a.rows,
        *a.strides,
        out.stride(0),
        a.c,
        v_scale,
        **a.shape_constants,
        BLOCK_M=block,
        GROUP_PAD=group_pad,
        WORDS=mask.shape[1],
        num_warps=config.warps(block),
        num_stages=1,
        **EXACT,
    )


def _dense(
    a: Arguments,
    q: Tensor,
    mask: Tensor,
    prefix_len: Tensor,
    kv_bound: int,
    v_scale: float,
    out: Tensor,
    workspace: Tensor,
) -> None:
    config = a.config
    splits = triton.cdiv(max(0, kv_bound - a.n), a.split)
    acc, stats = _states(a, splits + 1, workspace)
    block = min(config.row_block(a.rows), config.dense_most)
    dense_kernel[triton.cdiv(a.rows, block), a.kv_heads, splits + 1](
        q,
        a.k,
        a.v,
        mask,
        prefix_len,
        acc,
        stats,
        a.rows,
        splits,
        *a.strides,
        a.c,
        **a.shape_constants,
        BLOCK_M=block,
        WORDS=mask.shape[1],
        num_warps=max(config.warps(block), config.dense_warps),
        num_stages=config.stages,
        **EXACT,
    )
    combine_kernel[a.n, a.kv_heads](
        prefix_len,
        acc,
        stats,
        out,
        a.rows,
        splits,
        out.stride(0),
        a.c,
        v_scale,
        **a.shape_constants,
        GROUP_PAD=triton.next_power_of_2(a.group),
        num_warps=4,
        num_stages=1,
        **EXACT,
    )
