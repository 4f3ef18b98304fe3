"""Attention of a chain (prefill chunks), with the bits of `tree_attention` in its exact form.

Grid (M block, KV head, block of COLUMNS of the result). M packs (row, head of the group), as in the
tree kernels. Two states have to be held, of a split and of those before it; where they would not
fit into registers the columns of the result are shared out, and the scores are computed twice.

Row i of the chunk stands at position prefix_len + i, which is also its cache row: nothing has to be
gathered. A program walks through all positions that one of its rows sees, tile by tile, split by
split, with
the update of the tree kernels and the same joining of splits; tiles above a row's own position
leave its state as it is, bit for bit. So it makes no difference how a prompt is cut into chunks,
nor whether a token was part of one or was decoded.

Traffic: keys and values up to the block's last position for each block of BLOCK_M / GROUP rows,
from the second block on out of L2. With 64 rows of M a byte of K or V serves 32 multiply-adds.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .attention_arguments import Arguments
from .attention_configs import AttentionConfig, padded_head_dim
from .target import EXACT, dot
from .tree_attention_prefix import load_queries
from .tree_attention_state import NOTHING, SUMS, advance, load_kv, merge
from .tree_attention_tail import store_block


@triton.jit(do_not_specialize=["rows"])
def causal_kernel(
    q_ptr: tl.tensor,  # [N, Hq, D]
    k_ptr: tl.tensor,  # [Hkv, S, D]
    v_ptr: tl.tensor,  # [Hkv, S, D]
    prefix_len_ptr: tl.tensor,  # [1] int32
    out_ptr: tl.tensor,  # [N, Hq D], written
    rows: tl.tensor,  # N GROUP
    stride_qn: tl.tensor,
    stride_qh: tl.tensor,
    stride_kh: tl.tensor,
    stride_ks: tl.tensor,
    stride_vh: tl.tensor,
    stride_vs: tl.tensor,
    stride_on: tl.tensor,
    c: tl.tensor,
    v_scale: tl.tensor,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
) -> None:
    """See the top of the file."""
    # The last blocks have the most to do: first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    prefix_len = tl.load(prefix_len_ptr)
    r = block * BLOCK_M + tl.arange(0, BLOCK_M)
    q = load_queries(q_ptr, head, r, rows, stride_qn, stride_qh, GROUP, D, D_PAD)
    position = prefix_len + tl.minimum(r, rows - 1) // GROUP
    stop = prefix_len + tl.minimum(block * BLOCK_M + BLOCK_M - 1, rows - 1) // GROUP + 1
    k_ptr += head.to(tl.int64) * stride_kh
    v_ptr += head.to(tl.int64) * stride_vh
    d = tl.arange(0, D_PAD)
    t = tl.arange(0, TILE)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    m_all = tl.full([BLOCK_M], NOTHING, tl.float32)
    z_all = tl.zeros([BLOCK_M], tl.float32)
    acc_all = tl.zeros([BLOCK_M, COLUMNS], tl.float32)
    for begin in tl.range(0, stop, SPLIT):
        m = tl.full([BLOCK_M], NOTHING, tl.float32)
        z = tl.zeros([BLOCK_M, SUMS], tl.float32)
        acc = tl.zeros([BLOCK_M, COLUMNS], tl.float32)
        for start in tl.range(begin, tl.minimum(begin + SPLIT, stop), TILE):
            at = start + t
            live = (at < stop)[:, None]
            row = at.to(tl.int64)[:, None]
            k_ptrs = k_ptr + row * stride_ks + d[None, :]
            k = load_kv(k_ptrs, live & (d < D)[None, :], q.dtype, True)
            scores = dot(q, tl.trans(k), tl.zeros([BLOCK_M, TILE], tl.float32))
            scores = tl.where(at[None, :] <= position[:, None], scores, NOTHING)
            v_ptrs = v_ptr + row * stride_vs + columns[None, :]
            v = load_kv(v_ptrs, live & (columns < D)[None, :], q.dtype, True)
            m, z, acc = advance(m, z, acc, scores, v, c)
        m_all, z_all, acc_all = merge(m_all, z_all, acc_all, m, tl.max(z, 1), acc, c)
    out = (r // GROUP).to(tl.int64) * stride_on + (head * GROUP + r % GROUP) * D
    store_block(out_ptr, out, columns, r < rows, z_all, acc_all, v_scale, D)


def causal_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    prefix_len: Tensor,
    kv_bound: int,
    scale: float,
    out: Tensor,
    *,
    split: int,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    config: AttentionConfig | None = None,
) -> None:
    """Cache row t is visible to row i iff t <= prefix_len + i.

    Args:
        q, k_cache, v_cache, prefix_len, kv_bound, scale, out: as for `tree_attention`.
        split, k_scale, v_scale: as for `tree_attention`; the same split for the same bits.
        config: the blocks, instead of the table's.

    Raises:
        LaunchError: shapes, dtypes or strides that no kernel serves.
    """
    a = Arguments.of(q, k_cache, v_cache, scale, out, split, k_scale, v_scale, config)
    config = a.config
    columns = min(config.causal_columns, padded_head_dim(a.head_dim))
    block = max(config.tail_block, triton.next_power_of_2(a.group))
    causal_kernel[triton.cdiv(a.rows, block), a.kv_heads, triton.cdiv(a.head_dim, columns)](
        q,
        a.k,
        a.v,
        prefix_len,
        out,
        a.rows,
        *a.strides,
        out.stride(0),
        a.c,
        v_scale,
        **a.shape_constants,
        BLOCK_M=block,
        COLUMNS=columns,
        num_warps=config.causal_warps or config.warps(block),
        num_stages=config.causal_stages,
        **EXACT,
    )
