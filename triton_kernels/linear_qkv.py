"""Queries, keys and values from x in one launch: norm, product, norms of heads, rotation, KV write.

q, k, v = split(rmsnorm(x) @ w.T + bias), then what `rope_kv_write` does with them. A tile is one
head, its two halves side by side in registers. Grid: (blocks of 64 rows, heads * splits); the rest
is in `linear_product`. Against three launches it saves the traffic of the normed rows and of the
projection, (2 H + 2 (Hq + 2 Hkv) D) M elements, and two launches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .linear import TYPES, row_blocks_of, scratch, weight_types
from .linear_product import halves, normed_product
from .linear_weights import ROWS, PackedWeight, head_tile_for, splits_for
from .rope_kv_write import rotated
from .target import EXACT, LaunchError, narrow
from .variants import Variant


@triton.jit(do_not_specialize=["rows"])
def qkv_kernel(
    x: tl.tensor,
    sums: tl.tensor,
    norm: tl.tensor,
    weight: tl.tensor,
    scales: tl.tensor,
    minimums: tl.tensor,
    bias: tl.tensor,
    q_norm: tl.tensor,
    k_norm: tl.tensor,
    cos_sin: tl.tensor,
    positions: tl.tensor,
    prefix_len: tl.tensor,
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    q_out: tl.tensor,
    partial: tl.tensor,
    arrivals: tl.tensor,
    rows: tl.tensor,
    x_row: tl.tensor,
    table_row: tl.tensor,
    cache_head: tl.tensor,
    cache_row: tl.tensor,
    q_row: tl.tensor,
    width: tl.tensor,
    q_heads: tl.tensor,
    kv_heads: tl.tensor,
    head_dim: tl.tensor,
    eps: tl.tensor,
    FORMAT: tl.constexpr,
    BIAS: tl.constexpr,
    HEAD_NORM: tl.constexpr,
    PARTS: tl.constexpr,
    MASKED: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """One head over one split."""
    first = tl.program_id(0) * ROWS
    head = tl.program_id(1) // SPLITS
    split = tl.program_id(1) % SPLITS
    tile = head * tl.num_programs(0) + tl.program_id(0)
    padded: tl.constexpr = COLUMNS // 2
    half = head_dim // 2
    lane = tl.arange(0, COLUMNS)
    exists = lane % padded < half
    output = (head * head_dim + lane % padded + tl.where(lane < padded, 0, half)).to(tl.int64)
    acc, last = normed_product(
        x, sums, norm, weight, scales, minimums, output, exists, first, tile, split, rows, x_row,
        width, eps, partial, arrivals, FORMAT, PARTS, MASKED, SPLITS, ROWS, COLUMNS, DEPTH,
    )  # fmt: skip
    if last:
        m = first + tl.arange(0, ROWS)
        dtype: tl.constexpr = q_out.dtype.element_ty
        if BIAS:
            acc += tl.load(bias + output, mask=exists, other=0).to(tl.float32)[None, :]
        lo, hi = halves(narrow(acc, dtype).to(tl.float32))
        column = tl.arange(0, padded)[None, :]
        real = (m < rows)[:, None]
        inside = real & (column < half)
        if head < q_heads + kv_heads:
            position = tl.load(positions + m, mask=m < rows, other=0).to(tl.int64)[:, None]
            at = cos_sin + position * table_row + column
            cos = tl.load(at, mask=inside, other=0)
            sin = tl.load(at + half, mask=inside, other=0)
            gain_lo = cos
            gain_hi = cos
            if HEAD_NORM:
                query = head < q_heads
                q_lo = tl.load(q_norm + column, mask=column < half, other=0)
                q_hi = tl.load(q_norm + half + column, mask=column < half, other=0)
                k_lo = tl.load(k_norm + column, mask=column < half, other=0)
                k_hi = tl.load(k_norm + half + column, mask=column < half, other=0)
                gain_lo = tl.where(query, q_lo, k_lo).to(tl.float32)
                gain_hi = tl.where(query, q_hi, k_hi).to(tl.float32)
            lo, hi = rotated(lo, hi, gain_lo, gain_hi, cos, sin, head_dim, eps, dtype, HEAD_NORM)
        lo = narrow(lo, dtype)
        hi = narrow(hi, dtype)
        if head < q_heads:
            target = q_out + m.to(tl.int64)[:, None] * q_row + head * head_dim + column
            tl.store(target, lo, mask=inside)
            tl.store(target + half, hi, mask=inside)
        else:
            cached = (tl.load(prefix_len) + m).to(tl.int64)[:, None] * cache_row + column
            if head < q_heads + kv_heads:
                target = k_cache + (head - q_heads).to(tl.int64) * cache_head + cached
                tl.store(target, lo, mask=inside)
                tl.store(target + half, hi, mask=inside)
            else:
                target = v_cache + (head - q_heads - kv_heads).to(tl.int64) * cache_head + cached
                tl.store(target, lo, mask=inside)
                tl.store(target + half, hi, mask=inside)


def norm_qkv(
    x: torch.Tensor,
    sums: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    weight: PackedWeight,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    prefix_len: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    q_out: torch.Tensor,
    arrivals: torch.Tensor,
) -> None:
    """Launch.

    x [M, H], sums, norm, eps and arrivals as for `norm_gate_up`; weight [(Hq + 2 Hkv) D, H]; the
    others as for `rope_kv_write`.
    """
    rows, q_heads, head_dim = q_out.shape
    kv_heads = k_cache.shape[0]
    if k_cache.stride() != v_cache.stride():
        raise LaunchError(f"keys and values lie apart: {k_cache.stride()} and {v_cache.stride()}")
    tile = head_tile_for(weight.weight_format, x.dtype, head_dim)
    heads = q_heads + 2 * kv_heads
    splits = splits_for(heads, weight.in_features)
    row_blocks = row_blocks_of(rows)
    qkv_kernel[(row_blocks, heads * splits)](
        x,
        sums,
        norm,
        weight.data,
        weight.scales,
        weight.minimums,
        x if weight.bias is None else weight.bias,
        x if q_norm is None else q_norm,
        x if k_norm is None else k_norm,
        cos_sin,
        positions,
        prefix_len,
        k_cache,
        v_cache,
        q_out,
        scratch(x, heads, splits, tile.columns, row_blocks),
        arrivals,
        rows,
        x.stride(0),
        cos_sin.stride(0),
        k_cache.stride(0),
        k_cache.stride(1),
        q_out.stride(0),
        weight.in_features,
        q_heads,
        kv_heads,
        head_dim,
        eps,
        FORMAT=weight.weight_format,
        BIAS=weight.bias is not None,
        HEAD_NORM=q_norm is not None,
        PARTS=sums.shape[0],
        MASKED=weight.in_features % tile.depth != 0,
        SPLITS=splits,
        ROWS=ROWS,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **EXACT,
    )


def variants() -> list[Variant]:
    """Formats, dtypes and head sizes, for a hidden size of 4096; norms of heads for D = 128."""
    found = []
    tensors = ("x", "norm", "bias", "q_norm", "k_norm", "k_cache", "v_cache", "q_out")
    numbers = ("rows", "x_row", "table_row", "cache_row", "q_row", "width")
    for dtype, torch_dtype, weight_format in TYPES:
        for head_dim in (64, 80, 96, 128, 256):
            if head_dim != 128 and weight_format != "float":
                continue
            tile = head_tile_for(weight_format, torch_dtype, head_dim)
            found.append(
                Variant(
                    f"{dtype} {weight_format} d{head_dim}",
                    qkv_kernel,
                    {
                        **dict.fromkeys(tensors, f"*{dtype}"),
                        **weight_types(weight_format, dtype),
                        **dict.fromkeys(("sums", "partial", "cos_sin"), "*fp32"),
                        **dict.fromkeys(("arrivals", "positions", "prefix_len"), "*i32"),
                        **dict.fromkeys((*numbers, "q_heads", "kv_heads", "head_dim"), "i32"),
                        "cache_head": "i64",
                        "eps": "fp32",
                    },
                    {
                        "FORMAT": weight_format,
                        "BIAS": True,
                        "HEAD_NORM": head_dim == 128,
                        "PARTS": 4096 // (64 if dtype == "fp32" else 128),
                        "MASKED": False,
                        "SPLITS": 4,
                        "ROWS": ROWS,
                        "COLUMNS": tile.columns,
                        "DEPTH": tile.depth,
                    },
                    num_warps=tile.warps,
                    num_stages=tile.stages,
                    aligned=(
                        *(*tensors, "weight", "scales", "minimums", "sums", "partial", "cos_sin"),
                        *("x_row", "table_row", "cache_head", "cache_row", "q_row", "width"),
                        "head_dim",
                    ),
                    quick=dtype == "bf16" and head_dim == 128 and weight_format != "int4",
                )
            )
    return found
