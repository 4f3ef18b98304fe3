"""Kernel 2 of tree attention, exact form: the tail of each row, and the joining of its splits.

Grid (tree row, KV head). A row at position p = prefix_len + depth still lacks the tiles from the
one that holds position prefix_len to the one that holds p: seldom more than two. The kernel goes on
where kernel 1 stopped: with the state of the split that these tiles belong to, and with the same
update. Keys and values are gathered by position: position t < prefix_len is cache row t, position
prefix_len + e is the cache row of the row's ancestor at depth e. So the tile looks as it will when
the path is committed, and a row gets the bits that decoding its path token by token would give it.
Then the states of all splits are joined in rising order, and out = acc / z.

Traffic, for each row and KV head: 2 TILE D elements for each of these tiles, out of L2 (neighbours
share nearly all of them), and 4 (D + 2) bytes for each head and split. Why the keys are gathered
along with the values: the scores could be had from one dense product, but looking them up by
position would take a detour through memory for half of the gathered bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .ancestors import ancestor_at, depth_of
from .target import dot, narrow
from .tree_attention_prefix import load_queries, load_state
from .tree_attention_state import NOTHING, SUMS, advance, load_kv, merge


@triton.jit
def first_rows(x: tl.tensor, live: tl.tensor, ROWS: tl.constexpr) -> tl.tensor:
    """[ROWS, D]: the first rows of x [BLOCK_M, D], those that are live; zeros for the others."""
    if x.shape[0] != ROWS:
        x = tl.where(live[:, None], x, 0.0)
        x = tl.sum(tl.reshape(x, [x.shape[0] // ROWS, ROWS, x.shape[1]]), 0)
    return x


@triton.jit
def first_values(
    x: tl.tensor, live: tl.tensor, empty: tl.constexpr, ROWS: tl.constexpr
) -> tl.tensor:
    """[ROWS]: the first values of x [BLOCK_M], those that are live; `empty` for the others."""
    if x.shape[0] != ROWS:
        x = tl.where(live, x, empty)
        x = tl.max(tl.reshape(x, [x.shape[0] // ROWS, ROWS]), 0)
    return x


@triton.jit
def store_block(
    out_ptr: tl.tensor,
    at: tl.tensor,
    d: tl.tensor,
    live: tl.tensor,
    z: tl.tensor,
    acc: tl.tensor,
    v_scale: tl.tensor,
    D: tl.constexpr,
) -> None:
    """acc / z * v_scale, rounded once, to elements at [M] + d [columns], where live and d < D."""
    total = tl.where(live, z, 1.0)
    value = narrow(acc / total[:, None] * v_scale, out_ptr.dtype.element_ty)
    tl.store(out_ptr + at[:, None] + d[None, :], value, mask=live[:, None] & (d < D)[None, :])


@triton.jit(do_not_specialize=["rows"])
def tail_kernel(
    q_ptr: tl.tensor,  # [N, Hq, D]
    k_ptr: tl.tensor,  # [Hkv, S, D]
    v_ptr: tl.tensor,  # [Hkv, S, D]
    mask_ptr: tl.tensor,  # [N, WORDS] int64
    prefix_len_ptr: tl.tensor,  # [1] int32
    acc_ptr: tl.tensor,  # [splits, Hkv, rows, D] fp32
    stats_ptr: tl.tensor,  # [splits, Hkv, 2, rows] fp32
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
    GROUP_PAD: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    WORDS: tl.constexpr,
) -> None:
    """See the top of the file."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    kv_heads = tl.num_programs(1)
    prefix_len = tl.load(prefix_len_ptr)
    position = prefix_len + depth_of(mask_ptr, row, WORDS)
    first_tile = prefix_len // TILE
    complete = first_tile * TILE
    k_ptr += head.to(tl.int64) * stride_kh
    v_ptr += head.to(tl.int64) * stride_vh
    d = tl.arange(0, D_PAD)

    # The splits before the one where the prefix ends.
    g = tl.arange(0, GROUP_PAD)
    m_all = tl.full([GROUP_PAD], NOTHING, tl.float32)
    z_all = tl.zeros([GROUP_PAD], tl.float32)
    acc_all = tl.zeros([GROUP_PAD, D_PAD], tl.float32)
    split = complete // SPLIT
    for s in tl.range(0, split, num_stages=3):
        m, z, acc = load_state(
            acc_ptr, stats_ptr, s * kv_heads + head, row * GROUP + g, rows, g < GROUP, D, D_PAD
        )
        m_all, z_all, acc_all = merge(m_all, z_all, acc_all, m, z, acc, c)

    # That split, and those that a deep tree reaches behind it.
    r = tl.arange(0, BLOCK_M)
    own = r < GROUP
    q = load_queries(
        q_ptr + row.to(tl.int64) * stride_qn, head, r, GROUP, 0, stride_qh, GROUP, D, D_PAD
    )
    t = tl.arange(0, TILE)
    for s in tl.range(split, position // SPLIT + 1):
        begun = r < tl.where(s * SPLIT < complete, GROUP, 0)
        m, z, acc = load_state(
            acc_ptr, stats_ptr, s * kv_heads + head, row * GROUP + r, rows, begun, D, D_PAD
        )
        z = tl.broadcast_to(z[:, None], [BLOCK_M, SUMS])
        tile_from = tl.maximum(s * SPLIT, complete)
        tile_to = tl.minimum(s * SPLIT + SPLIT, position + 1)
        for start in tl.range(tile_from, tile_to, TILE):
            at = start + t
            seen = at <= position
            node = ancestor_at(mask_ptr, row, at - prefix_len, WORDS)
            cache_row = tl.where(at < prefix_len, at.to(tl.int64), prefix_len + node)
            keep = seen[:, None] & (d < D)[None, :]
            k = load_kv(k_ptr + cache_row[:, None] * stride_ks + d[None, :], keep, q.dtype, True)
            scores = dot(q, tl.trans(k), tl.zeros([BLOCK_M, TILE], tl.float32))
            scores = tl.where(seen[None, :], scores, NOTHING)
            v = load_kv(v_ptr + cache_row[:, None] * stride_vs + d[None, :], keep, q.dtype, True)
            m, z, acc = advance(m, z, acc, scores, v, c)
        m_all, z_all, acc_all = merge(
            m_all,
            z_all,
            acc_all,
            first_values(m, own, float("-inf"), GROUP_PAD),
            first_values(tl.max(z, 1), own, 0.0, GROUP_PAD),
            first_rows(acc, own, GROUP_PAD),
            c,
        )
    out = row.to(tl.int64) * stride_on + (head * GROUP + g) * D
    store_block(out_ptr, out, d, g < GROUP, z_all, acc_all, v_scale, D)
