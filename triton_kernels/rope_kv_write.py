"""Queries and keys normalised per head and rotated, queries put out, keys and values cached.

Maths, of a head x = (lo, hi) at position p: where there are norms, x = round(round(x / rms(x)) w);
then lo' = round(lo cos_p - hi sin_p), hi' = round(hi cos_p + lo sin_p) with fp32 cosines and sines.
Values are copied. Grid: (N, blocks of HEADS heads of the fused projection).
Traffic: 2 N (Hq + 2 Hkv) D elements and N D fp32 of the table; nothing is read twice.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .target import EXACT, LaunchError, narrow, require_dense_rows
from .variants import Variant

_HEADS = 4  # a program: enough programs for one row, whole warps for D = 64


@triton.jit
def rotated(
    lo: tl.tensor,
    hi: tl.tensor,
    gain_lo: tl.tensor,
    gain_hi: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    head_dim: tl.tensor,
    eps: tl.tensor,
    dtype: tl.constexpr,
    NORM: tl.constexpr,
) -> tl.tensor:
    """The two halves of heads along axis 1, normalised and rotated, in fp32, not yet rounded."""
    if NORM:
        squares = tl.sum(lo * lo, 1) + tl.sum(hi * hi, 1)
        inverse = tl.rsqrt(squares / head_dim + eps)[:, None]
        lo = narrow(narrow(lo * inverse, dtype).to(tl.float32) * gain_lo, dtype).to(tl.float32)
        hi = narrow(narrow(hi * inverse, dtype).to(tl.float32) * gain_hi, dtype).to(tl.float32)
    return lo * cos - hi * sin, hi * cos + lo * sin


@triton.jit
def rope_kv_write_kernel(
    qkv: tl.tensor,
    q_norm: tl.tensor,
    k_norm: tl.tensor,
    cos_sin: tl.tensor,
    positions: tl.tensor,
    prefix_len: tl.tensor,
    k_cache: tl.tensor,
    v_cache: tl.tensor,
    q_out: tl.tensor,
    qkv_row: tl.tensor,
    table_row: tl.tensor,
    cache_head: tl.tensor,
    cache_row: tl.tensor,
    q_row: tl.tensor,
    q_heads: tl.tensor,
    kv_heads: tl.tensor,
    head_dim: tl.tensor,
    eps: tl.tensor,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    """Some heads of one row; a head's elements lie side by side, its halves D / 2 apart."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, HALF)[None, :]
    half = head_dim // 2
    in_half = column < half
    is_query = head < q_heads
    is_key = (head >= q_heads) & (head < q_heads + kv_heads)
    is_value = (head >= q_heads + kv_heads) & (head < q_heads + 2 * kv_heads)
    inside = in_half & (head < q_heads + 2 * kv_heads)
    dtype: tl.constexpr = q_out.dtype.element_ty
    source = qkv + row * qkv_row + head * head_dim + column
    lo = tl.load(source, mask=inside, other=0)
    hi = tl.load(source + half, mask=inside, other=0)
    position = tl.load(positions + row).to(tl.int64)
    cos = tl.load(cos_sin + position * table_row + column, mask=in_half, other=0)
    sin = tl.load(cos_sin + position * table_row + half + column, mask=in_half, other=0)
    gain_lo = cos
    gain_hi = cos
    if NORM:
        q_lo = tl.load(q_norm + column, mask=in_half, other=0).to(tl.float32)
        q_hi = tl.load(q_norm + half + column, mask=in_half, other=0).to(tl.float32)
        k_lo = tl.load(k_norm + column, mask=in_half, other=0).to(tl.float32)
        k_hi = tl.load(k_norm + half + column, mask=in_half, other=0).to(tl.float32)
        gain_lo = tl.where(is_query, q_lo, k_lo)
        gain_hi = tl.where(is_query, q_hi, k_hi)
    new_lo, new_hi = rotated(
        lo.to(tl.float32), hi.to(tl.float32), gain_lo, gain_hi, cos, sin, head_dim, eps, dtype, NORM
    )
    new_lo = narrow(new_lo, dtype)
    new_hi = narrow(new_hi, dtype)
    target = q_out + row * q_row + head * head_dim + column
    tl.store(target, new_lo, mask=in_half & is_query)
    tl.store(target + half, new_hi, mask=in_half & is_query)
    cached = (tl.load(prefix_len) + row) * cache_row + column
    key = k_cache + (head - q_heads).to(tl.int64) * cache_head + cached
    tl.store(key, new_lo, mask=in_half & is_key)
    tl.store(key + half, new_hi, mask=in_half & is_key)
    value = v_cache + (head - q_heads - kv_heads).to(tl.int64) * cache_head + cached
    tl.store(value, lo, mask=in_half & is_value)
    tl.store(value + half, hi, mask=in_half & is_value)


def rope_kv_write(
    qkv: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    prefix_len: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    q_out: torch.Tensor,
) -> None:
    """Launch.

    qkv [N, (Hq + 2 Hkv) D]; q_norm, k_norm [D] or both None; cos_sin [P, D] fp32; positions [N]
    int32; prefix_len [1] int32; k_cache, v_cache [Hkv, S, D] of the same strides, rows written;
    q_out [N, Hq, D], written.
    """
    rows, q_heads, head_dim = q_out.shape
    kv_heads = k_cache.shape[0]
    if k_cache.stride() != v_cache.stride():
        raise LaunchError(f"keys and values lie apart: {k_cache.stride()} and {v_cache.stride()}")
    require_dense_rows("rope_kv_write", qkv=qkv, cos_sin=cos_sin, k_cache=k_cache, q_out=q_out)
    rope_kv_write_kernel[(rows, triton.cdiv(q_heads + 2 * kv_heads, _HEADS))](
        qkv,
        qkv if q_norm is None else q_norm,
        qkv if k_norm is None else k_norm,
        cos_sin,
        positions,
        prefix_len,
        k_cache,
        v_cache,
        q_out,
        qkv.stride(0),
        cos_sin.stride(0),
        k_cache.stride(0),
        k_cache.stride(1),
        q_out.stride(0),
        q_heads,
        kv_heads,
        head_dim,
        eps,
        NORM=q_norm is not None,
        HEADS=_HEADS,
        HALF=triton.next_power_of_2(head_dim // 2),
        **EXACT,
    )


def variants() -> list[Variant]:
    """Head sizes of the supported models, with norms (Qwen3) and without."""
    tensors = ("qkv", "q_norm", "k_norm", "k_cache", "v_cache", "q_out")
    strides = ("qkv_row", "table_row", "cache_head", "cache_row", "q_row")
    order = rope_kv_write_kernel.arg_names
    return [
        Variant(
            f"{dtype} d{head_dim}{' norm' if norm else ''}",
            rope_kv_write_kernel,
            {
                name: f"*{dtype}"
                if name in tensors
                else {
                    "cos_sin": "*fp32",
                    "positions": "*i32",
                    "prefix_len": "*i32",
                    "eps": "fp32",
                    "cache_head": "i64",
                }.get(name, "i32")
                for name in order[:-3]
            },
            {"NORM": norm, "HEADS": _HEADS, "HALF": triton.next_power_of_2(head_dim // 2)},
            aligned=(*tensors, "cos_sin", *strides),
            quick=dtype == "bf16" and head_dim == 128 and norm,
        )
        for dtype in ("bf16", "fp16", "fp32")
        for head_dim in (64, 80, 96, 128, 256)
        for norm in (False, True)
    ]
