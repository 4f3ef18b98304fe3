"""The state of a running softmax, and the one update that every attention kernel here makes.

For one row: m, the largest raw score so far; z, the sum of 2**(c (score - m)); acc [D], the sum of
these times the values; c = scale * log2(e). The result is acc / z. All are fp32.

A row's bits depend on the order and the shape of the operations. Both are fixed here: `advance`
takes one tile of positions, `merge` joins two states, products and sums are fused where tl.fma says
so and nowhere else. No sum is left to a reduction over threads, whose order follows the layout that
the compiler picks for a block: z is summed like acc, by the matrix instruction, as one more column
of values that are all 1. It has SUMS equal columns (what an instruction takes at least) while tiles
are added. Maxima do not depend on their order.

Positions a row may not see have the score -inf: they change no bit of it, in whichever tile they
stand, because 2**-inf is 0 and adding 0 or scaling by 2**0 is exact.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .target import INTERPRETED, dot, narrow

NOTHING: tl.constexpr = tl.constexpr(float("-inf"))
SUMS: tl.constexpr = tl.constexpr(16)


@triton.jit
def advance(
    m: tl.tensor, z: tl.tensor, acc: tl.tensor, scores: tl.tensor, v: tl.tensor, c: tl.tensor
) -> tl.tensor:
    """The state after one more tile: scores [M, TILE] raw fp32, v [TILE, D]; z is [M, SUMS]."""
    m_new = tl.maximum(m, tl.max(scores, 1))
    base = tl.where(m_new == NOTHING, 0.0, m_new) * c  # -inf - -inf would be NaN
    shrink = tl.exp2(m * c - base)
    p = narrow(tl.exp2(tl.fma(scores, c, -base[:, None])), v.dtype)
    z = dot(p, tl.full([v.shape[0], SUMS], 1.0, v.dtype), z * shrink[:, None])
    acc = dot(p, v, acc * shrink[:, None])
    return m_new, z, acc


@triton.jit
def merge(
    m: tl.tensor,
    z: tl.tensor,
    acc: tl.tensor,
    m_next: tl.tensor,
    z_next: tl.tensor,
    acc_next: tl.tensor,
    c: tl.tensor,
) -> tl.tensor:
    """The state of two neighbouring ranges of positions, the lower one first."""
    m_new = tl.maximum(m, m_next)
    base = tl.where(m_new == NOTHING, 0.0, m_new) * c  # -inf - -inf would be NaN
    a = tl.exp2(m * c - base)
    b = tl.exp2(m_next * c - base)
    z = tl.fma(z, a, z_next * b)
    acc = tl.fma(acc, a[:, None], acc_next * b[:, None])
    return m_new, z, acc


@triton.jit
def load_kv(ptrs: tl.tensor, mask: tl.tensor, dtype: tl.constexpr, MASKED: tl.constexpr):  # noqa: ANN201
    """Keys or values in the dtype of the queries.

    fp8 values come as they are where the GPU knows e4m3; as bytes elsewhere: shifted into fp16's
    fields they are 2**-8 of their value, subnormal ones included.
    """
    x = tl.load(ptrs, mask=mask, other=0.0) if MASKED else tl.load(ptrs)
    if x.dtype == tl.uint8:
        bits = x.to(tl.uint16)
        half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        x = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    if x.dtype != dtype:
        if INTERPRETED:
            x = x.to(tl.float32)
        x = narrow(x, dtype)
    return x
