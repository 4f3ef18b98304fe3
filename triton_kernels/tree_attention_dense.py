"""Tree attention, plain form (exact=False): the tree as one dense masked block behind the prefix.

Kernel 1 here is kernel 1 of the exact form with one more program for each M block and KV head: it
takes the tiles from the one that holds position prefix_len to the last cache row of the tree, every
row of the tree at once, and tests the mask bits there. Kernel 2 only joins states.

No tile is gathered, so it costs less where the prefix is short. But a row's siblings take up places
between its ancestors: the sum has another order than in plain decoding, and another last bit.

A row that may not be seen has the weight 0, which clears everything but NaN and infinities among
the rows of the step itself; dead cache rows behind the step are never read.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .target import dot
from .tree_attention_prefix import load_queries, load_state, prefix_state, store_state
from .tree_attention_state import NOTHING, SUMS, advance, load_kv, merge
from .tree_attention_tail import store_block


@triton.jit
def window_word(
    mask_ptr: tl.tensor, node: tl.tensor, word: tl.tensor, live: tl.tensor, WORDS: tl.constexpr
) -> tl.tensor:
    """uint64 mask word number `word` of each row: all bits before the first, none behind."""
    inside = live & (word >= 0) & (word < WORDS)
    bits = tl.load(mask_ptr + node * WORDS + word, mask=inside, other=0)
    return tl.where(word < 0, -1, bits).to(tl.uint64, bitcast=True)


@triton.jit
def visible_bits(
    mask_ptr: tl.tensor, node: tl.tensor, first: tl.tensor, live: tl.tensor, WORDS: tl.constexpr
) -> tl.tensor:
    """uint64 of each row: bit t tells whether it sees tree node first + t (below 0: it does)."""
    word = (first >> 6) + 0 * node
    shift = (first & 63).to(tl.uint64)
    low = window_word(mask_ptr, node, word, live, WORDS)
    high = window_word(mask_ptr, node, word + 1, live, WORDS)
    # Two shifts: one by 64 would not be defined.
    return (low >> shift) | ((high << (63 - shift)) << 1)


@triton.jit(do_not_specialize=["rows", "tree_slot"])
def dense_kernel(
    q_ptr: tl.tensor,  # [N, Hq, D]
    k_ptr: tl.tensor,  # [Hkv, S, D]
    v_ptr: tl.tensor,  # [Hkv, S, D]
    mask_ptr: tl.tensor,  # [N, WORDS] int64
    prefix_len_ptr: tl.tensor,  # [1] int32
    acc_ptr: tl.tensor,  # [tree_slot + 1, Hkv, rows, D] fp32, written
    stats_ptr: tl.tensor,  # [tree_slot + 1, Hkv, 2, rows] fp32, written
    rows: tl.tensor,  # N GROUP
    tree_slot: tl.tensor,  # the split number that stands for the tree
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
    WORDS: tl.constexpr,
) -> None:
    """See the top of the file."""
    head = tl.program_id(1)
    split = tl.program_id(2)
    prefix_len = tl.load(prefix_len_ptr)
    complete = prefix_len // TILE * TILE
    begin = split * SPLIT
    end = tl.minimum(begin + SPLIT, complete)
    is_tree = split == tree_slot
    if (begin >= end) & (is_tree == 0):
        return
    r = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    q = load_queries(q_ptr, head, r, rows, stride_qn, stride_qh, GROUP, D, D_PAD)
    k_ptr += head.to(tl.int64) * stride_kh
    v_ptr += head.to(tl.int64) * stride_vh
    slot = split * tl.num_programs(1) + head
    if is_tree:
        live = r < rows
        node = (r // GROUP).to(tl.int64)
        d = tl.arange(0, D_PAD)
        t = tl.arange(0, TILE)
        m = tl.full([BLOCK_M], NOTHING, tl.float32)
        sums = tl.zeros([BLOCK_M, SUMS], tl.float32)
        acc = tl.zeros([BLOCK_M, D_PAD], tl.float32)
        stop = prefix_len + rows // GROUP
        for start in tl.range(complete, stop, TILE, num_stages=1):
            at = (start + t).to(tl.int64)
            keep = (at < stop)[:, None] & (d < D)[None, :]
            bits = visible_bits(mask_ptr, node, start - prefix_len, live, WORDS)
            low, high = bits.to(tl.uint32), (bits >> 32).to(tl.uint32)
            half = tl.where((t < 32)[None, :], low[:, None], high[:, None])
            seen = ((half >> (t & 31).to(tl.uint32)[None, :]) & 1) != 0
            k = load_kv(k_ptr + at[:, None] * stride_ks + d[None, :], keep, q.dtype, True)
            scores = dot(q, tl.trans(k), tl.zeros([BLOCK_M, TILE], tl.float32))
            scores = tl.where(seen, scores, NOTHING)
            v = load_kv(v_ptr + at[:, None] * stride_vs + d[None, :], keep, q.dtype, True)
            m, sums, acc = advance(m, sums, acc, scores, v, c)
        store_state(acc_ptr, stats_ptr, slot, r, rows, m, tl.max(sums, 1), acc, D, D_PAD)
    else:
        m, z, acc = prefix_state(
            q, k_ptr, v_ptr, begin, end, stride_ks, stride_vs, c, BLOCK_M, TILE, D, D_PAD
        )
        store_state(acc_ptr, stats_ptr, slot, r, rows, m, z, acc, D, D_PAD)


@triton.jit(do_not_specialize=["rows", "tree_slot"])
def combine_kernel(
    prefix_len_ptr: tl.tensor,  # [1] int32
    acc_ptr: tl.tensor,  # [tree_slot + 1, Hkv, rows, D] fp32
    stats_ptr: tl.tensor,  # [tree_slot + 1, Hkv, 2, rows] fp32
    out_ptr: tl.tensor,  # [N, Hq D], written
    rows: tl.tensor,  # N GROUP
    tree_slot: tl.tensor,
    stride_on: tl.tensor,
    c: tl.tensor,
    v_scale: tl.tensor,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
) -> None:
    """Join the states of a row's splits in rising order, the tree last. Grid (row, KV head)."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    kv_heads = tl.num_programs(1)
    complete = tl.load(prefix_len_ptr) // TILE * TILE
    g = tl.arange(0, GROUP_PAD)
    own = g < GROUP
    r = row * GROUP + g
    slot = tree_slot * kv_heads + head
    m_tree, z_tree, acc_tree = load_state(acc_ptr, stats_ptr, slot, r, rows, own, D, D_PAD)
    m_all = tl.full([GROUP_PAD], NOTHING, tl.float32)
    z_all = tl.zeros([GROUP_PAD], tl.float32)
    acc_all = tl.zeros([GROUP_PAD, D_PAD], tl.float32)
    for s in tl.range(0, tl.cdiv(complete, SPLIT), num_stages=3):
        slot = s * kv_heads + head
        m, z, acc = load_state(acc_ptr, stats_ptr, slot, r, rows, own, D, D_PAD)
        m_all, z_all, acc_all = merge(m_all, z_all, acc_all, m, z, acc, c)
    m_all, z_all, acc_all = merge(m_all, z_all, acc_all, m_tree, z_tree, acc_tree, c)
    out = row.to(tl.int64) * stride_on + (head * GROUP + g) * D
    store_block(out_ptr, out, tl.arange(0, D_PAD), own, z_all, acc_all, v_scale, D)
