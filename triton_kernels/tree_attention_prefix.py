"""Kernel 1 of tree attention: the committed prefix, as far as it fills tiles.

For every tree row and head, over the positions of one split that lie in complete tiles:
    m = max_t q.k_t     z = sum_t 2**(c (q.k_t - m))     acc = sum_t 2**(c (q.k_t - m)) v_t

Grid (M block, KV head, split). M packs (tree row, head of the group): row r = i GROUP + g, so that
keys and values are read once for a whole tree. Split s has the positions [s SPLIT, (s+1) SPLIT),
tiles begin at multiples of TILE; both are absolute, so a row's state does not know how many rows or
positions there are. There is no mask: all rows see all of the prefix. A program whose split has
no complete tile leaves at once; the length is read on the device, the grid goes by a bound.

Traffic: keys and values of the prefix once for each M block (from the second one on out of L2), and
4 (D + 2) bytes of state for each row, head and split.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .target import dot
from .tree_attention_state import NOTHING, SUMS, advance, load_kv


@triton.jit
def load_queries(
    q_ptr: tl.tensor,
    head: tl.tensor,
    r: tl.tensor,
    rows: tl.tensor,
    stride_qn: tl.tensor,
    stride_qh: tl.tensor,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
) -> tl.tensor:
    """[len(r), D_PAD]: the queries of packed rows r, zero from `rows` and from D on."""
    d = tl.arange(0, D_PAD)
    at = (r // GROUP).to(tl.int64) * stride_qn + (head * GROUP + r % GROUP).to(tl.int64) * stride_qh
    keep = (r < rows)[:, None] & (d < D)[None, :]
    return tl.load(q_ptr + at[:, None] + d[None, :], mask=keep, other=0.0)


@triton.jit
def prefix_state(
    q: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    stride_ks: tl.tensor,
    stride_vs: tl.tensor,
    c: tl.tensor,
    BLOCK_M: tl.constexpr,
    TILE: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
) -> tl.tensor:
    """State of the complete tiles in [begin, end) of one KV head (k_ptr, v_ptr: its row 0)."""
    d = tl.arange(0, D_PAD)
    t = tl.arange(0, TILE).to(tl.int64)
    keep = (d < D)[None, :]
    k_at = t[:, None] * stride_ks + d[None, :]
    v_at = t[:, None] * stride_vs + d[None, :]
    m = tl.full([BLOCK_M], NOTHING, tl.float32)
    z = tl.zeros([BLOCK_M, SUMS], tl.float32)
    acc = tl.zeros([BLOCK_M, D_PAD], tl.float32)
    row = begin.to(tl.int64)
    for _ in tl.range(begin, end, TILE):
        k = load_kv(k_ptr + row * stride_ks + k_at, keep, q.dtype, D != D_PAD)
        scores = dot(q, tl.trans(k), tl.zeros([BLOCK_M, TILE], tl.float32))
        v = load_kv(v_ptr + row * stride_vs + v_at, keep, q.dtype, D != D_PAD)
        m, z, acc = advance(m, z, acc, scores, v, c)
        row += TILE
    return m, tl.max(z, 1), acc


@triton.jit
def store_state(
    acc_ptr: tl.tensor,
    stats_ptr: tl.tensor,
    slot: tl.tensor,
    r: tl.tensor,
    rows: tl.tensor,
    m: tl.tensor,
    z: tl.tensor,
    acc: tl.tensor,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
) -> None:
    """Write states to acc [slots, rows, D] and stats [slots, 2, rows] (m, then z), fp32."""
    d = tl.arange(0, D_PAD)
    live = r < rows
    first = slot.to(tl.int64) * rows
    tl.store(stats_ptr + 2 * first + r, m, mask=live)
    tl.store(stats_ptr + 2 * first + rows + r, z, mask=live)
    at = (first + r) * D
    tl.store(acc_ptr + at[:, None] + d[None, :], acc, mask=live[:, None] & (d < D)[None, :])


@triton.jit
def load_state(
    acc_ptr: tl.tensor,
    stats_ptr: tl.tensor,
    slot: tl.tensor,
    r: tl.tensor,
    rows: tl.tensor,
    live: tl.tensor,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
) -> tl.tensor:
    """What `store_state` wrote, for the rows that are `live`; the others have seen nothing."""
    d = tl.arange(0, D_PAD)
    first = slot.to(tl.int64) * rows
    m = tl.load(stats_ptr + 2 * first + r, mask=live, other=NOTHING)
    z = tl.load(stats_ptr + 2 * first + rows + r, mask=live, other=0.0)
    at = (first + r) * D
    keep = live[:, None] & (d < D)[None, :]
    acc = tl.load(acc_ptr + at[:, None] + d[None, :], mask=keep, other=0.0)
    return m, z, acc


@triton.jit(do_not_specialize=["rows"])
def prefix_kernel(
    q_ptr: tl.tensor,  # [N, Hq, D]
    k_ptr: tl.tensor,  # [Hkv, S, D]
    v_ptr: tl.tensor,  # [Hkv, S, D]
    prefix_len_ptr: tl.tensor,  # [1] int32
    acc_ptr: tl.tensor,  # [splits, Hkv, rows, D] fp32, written
    stats_ptr: tl.tensor,  # [splits, Hkv, 2, rows] fp32, written
    rows: tl.tensor,  # N GROUP
    stride_qn: tl.tensor,
    stride_qh: tl.tensor,
    stride_kh: tl.tensor,
    stride_ks: tl.tensor,
    stride_vh: tl.tensor,
    stride_vs: tl.tensor,
    c: tl.tensor,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
) -> None:
    """See the top of the file."""
    head = tl.program_id(1)
    split = tl.program_id(2)
    complete = tl.load(prefix_len_ptr) // TILE * TILE
    begin = split * SPLIT
    end = tl.minimum(begin + SPLIT, complete)
    if begin >= end:
        return
    r = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    q = load_queries(q_ptr, head, r, rows, stride_qn, stride_qh, GROUP, D, D_PAD)
    k_ptr += head.to(tl.int64) * stride_kh
    v_ptr += head.to(tl.int64) * stride_vh
    m, z, acc = prefix_state(
        q, k_ptr, v_ptr, begin, end, stride_ks, stride_vs, c, BLOCK_M, TILE, D, D_PAD
    )
    slot = split * tl.num_programs(1) + head
    store_state(acc_ptr, stats_ptr, slot, r, rows, m, z, acc, D, D_PAD)
