"""x @ w.T for some rows of a weight matrix: the loop that all linear kernels here share.

Row invariance. A tile is always ROWS rows of x by COLUMNS rows of w, and a sum runs over K in steps
of DEPTH in rising order, whatever the number of rows is; rows that do not exist are zeros. With few
tiles K is cut into `splits` parts, a number that follows from the shape of the weight alone: each
part's sum goes to memory, and the program that arrives last adds them up in their order. So a row's
bits follow from the row and the weight.

Traffic: the weight once from memory, and for each tile of COLUMNS outputs its rows of x out of L2:
N / COLUMNS * M K elements, half of the weight's at M = 64; of split sums M N splits fp32, written
and read in L2.

A weight is what `linear_weights` packs: in the dtype of x, or int8 with a scale an output, which is
exact in the dtype of x and scaled after the sum, or int4: values q * scale + minimum of 32 inputs,
rounded to the dtype of x. Of 128 inputs the low nibbles of 64 bytes hold the first half.

RMSNorm in front of the product costs no launch where the sums of squares are there already, in
parts [PARTS, M] (the kernel that wrote x has them): each loaded tile is scaled, rounded, multiplied
by the norm's weight and rounded, 4 operations an element, one in eight of what a multiprocessor has
time for while the tile's weights arrive.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .target import dot, narrow

GROUP = 32  # inputs that share a scale and a minimum in int4
INT4_BLOCK = 128  # inputs in the low and high nibbles of 64 bytes


@triton.jit
def inverse_rms(
    sums: tl.tensor,
    m: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    eps: tl.tensor,
    PARTS: tl.constexpr,
) -> tl.tensor:
    """1 / rms of rows `m` from their sums of squares [PARTS, rows], added in one order."""
    total = tl.zeros(m.shape, tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(sums + part * rows + m, mask=m < rows, other=0)
    return tl.rsqrt(total / width + eps)


@triton.jit
def load_x(
    x: tl.tensor,
    m: tl.tensor,
    k: tl.tensor,
    rows: tl.tensor,
    x_row: tl.tensor,
    width: tl.tensor,
    inverse: tl.tensor,
    gain: tl.tensor,
    NORM: tl.constexpr,
    MASKED: tl.constexpr,
) -> tl.tensor:
    """A tile of x, normalised where NORM."""
    inside = (m < rows)[:, None]
    if MASKED:
        inside = inside & (k < width)[None, :]
    tile = tl.load(x + m.to(tl.int64)[:, None] * x_row + k[None, :], mask=inside, other=0)
    if NORM:
        dtype: tl.constexpr = tile.dtype
        if MASKED:
            weight = tl.load(gain + k, mask=k < width, other=0).to(tl.float32)
        else:
            weight = tl.load(gain + k).to(tl.float32)
        normed = narrow(tile.to(tl.float32) * inverse[:, None], dtype).to(tl.float32)
        tile = narrow(normed * weight[None, :], dtype)
    return tile


@triton.jit
def widened(
    nibbles: tl.tensor, scale: tl.tensor, minimum: tl.tensor, dtype: tl.constexpr
) -> tl.tensor:
    """[COLUMNS, 64] nibbles of two groups as numbers; scale, minimum [COLUMNS, 2]."""
    columns: tl.constexpr = nibbles.shape[0]
    q = tl.reshape(nibbles.to(tl.float32), [columns, 2, 32])
    value = q * scale.to(tl.float32)[:, :, None] + minimum.to(tl.float32)[:, :, None]
    return narrow(tl.reshape(value, [columns, 64]), dtype)


@triton.jit
def product(
    x: tl.tensor,
    weight: tl.tensor,
    scales: tl.tensor,
    minimums: tl.tensor,
    output: tl.tensor,
    exists: tl.tensor,
    first: tl.tensor,
    split: tl.tensor,
    rows: tl.tensor,
    x_row: tl.tensor,
    width: tl.tensor,
    inverse: tl.tensor,
    gain: tl.tensor,
    FORMAT: tl.constexpr,
    NORM: tl.constexpr,
    MASKED: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> tl.tensor:
    """[ROWS, COLUMNS] fp32: rows `first`... of x by rows `output` of the weight, over one split."""
    dtype: tl.constexpr = x.dtype.element_ty
    m = first + tl.arange(0, ROWS)
    blocks = tl.cdiv(width, DEPTH)
    share = tl.cdiv(blocks, SPLITS)
    begin = split * share * DEPTH
    end = tl.minimum(begin + share * DEPTH, blocks * DEPTH)
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    here = exists[:, None]
    if FORMAT == "int4":
        half: tl.constexpr = DEPTH // 2
        groups = blocks * 4
        byte = weight + (output * (blocks * half))[:, None] + tl.arange(0, half)[None, :]
        pair = (output * groups)[:, None] + tl.arange(0, 2)[None, :]
        for start in range(begin, end, DEPTH):
            packed = tl.load(byte + start // 2, mask=here, other=0)
            at = pair + start // 32
            scale = tl.load(scales + at, mask=here, other=0)
            minimum = tl.load(minimums + at, mask=here, other=0)
            low = widened(packed & 15, scale, minimum, dtype)
            k = start + tl.arange(0, half)
            tile = load_x(x, m, k, rows, x_row, width, inverse, gain, NORM, MASKED)
            acc = dot(tile, tl.trans(low), acc)
            scale = tl.load(scales + at + 2, mask=here, other=0)
            minimum = tl.load(minimums + at + 2, mask=here, other=0)
            high = widened(packed >> 4, scale, minimum, dtype)
            tile = load_x(x, m, k + half, rows, x_row, width, inverse, gain, NORM, MASKED)
            acc = dot(tile, tl.trans(high), acc)
    else:
        source = weight + (output * width)[:, None] + tl.arange(0, DEPTH)[None, :]
        for start in range(begin, end, DEPTH):
            k = start + tl.arange(0, DEPTH)
            tile = load_x(x, m, k, rows, x_row, width, inverse, gain, NORM, MASKED)
            inside = here
            if MASKED:
                inside = here & (k < width)[None, :]
            w = tl.load(source + start, mask=inside, other=0)
            if FORMAT == "int8":
                w = narrow(w.to(tl.float32), dtype)
            acc = dot(tile, tl.trans(w), acc)
    if FORMAT == "int8" and SPLITS == 1:
        acc *= tl.load(scales + output, mask=exists, other=0)[None, :]
    return acc


@triton.jit
def joined(
    acc: tl.tensor,
    scales: tl.tensor,
    output: tl.tensor,
    exists: tl.tensor,
    first: tl.tensor,
    rows: tl.tensor,
    tile: tl.tensor,
    split: tl.tensor,
    partial: tl.tensor,
    arrivals: tl.tensor,
    FORMAT: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """(sum over all splits, is this the program that has it).

    `partial` [tiles, SPLITS, ROWS, COLUMNS] fp32; `arrivals` [tiles] int32, zeros before and after.
    """
    last = tile >= 0
    if SPLITS > 1:
        place = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        inside = (first + tl.arange(0, ROWS) < rows)[:, None] & (place >= 0)
        own = partial + tile.to(tl.int64) * (SPLITS * ROWS * COLUMNS) + place
        tl.store(own + split * (ROWS * COLUMNS), acc, mask=inside)
        tl.debug_barrier()  # what all threads stored goes before the arrival of one
        arrived = tl.atomic_add(arrivals + tile, 1, sem="acq_rel")
        last = arrived == SPLITS - 1
        if last:
            tl.debug_barrier()
            acc = tl.zeros([ROWS, COLUMNS], tl.float32)
            for part in range(SPLITS):
                # From L2: another multiprocessor wrote it.
                acc += tl.load(
                    own + part * (ROWS * COLUMNS), mask=inside, other=0, cache_modifier=".cg"
                )
            if FORMAT == "int8":
                acc *= tl.load(scales + output, mask=exists, other=0)[None, :]
            tl.store(arrivals + tile, 0)
    return acc, last


@triton.jit
def normed_product(
    x: tl.tensor,
    sums: tl.tensor,
    norm: tl.tensor,
    weight: tl.tensor,
    scales: tl.tensor,
    minimums: tl.tensor,
    output: tl.tensor,
    exists: tl.tensor,
    first: tl.tensor,
    tile: tl.tensor,
    split: tl.tensor,
    rows: tl.tensor,
    x_row: tl.tensor,
    width: tl.tensor,
    eps: tl.tensor,
    partial: tl.tensor,
    arrivals: tl.tensor,
    FORMAT: tl.constexpr,
    PARTS: tl.constexpr,
    MASKED: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> tl.tensor:
    """What `joined` returns, for rmsnorm(x) with the norm's weight and the sums of its squares."""
    m = first + tl.arange(0, ROWS)
    inverse = inverse_rms(sums, m, rows, width, eps, PARTS)
    acc = product(
        x, weight, scales, minimums, output, exists, first, split, rows, x_row, width, inverse,
        norm, FORMAT, True, MASKED, SPLITS, ROWS, COLUMNS, DEPTH,
    )  # fmt: skip
    return joined(
        acc, scales, output, exists, first, rows, tile, split, partial, arrivals,
        FORMAT, SPLITS, ROWS, COLUMNS,
    )  # fmt: skip


@triton.jit
def halves(acc: tl.tensor) -> tl.tensor:
    """The left and the right half of the columns."""
    rows: tl.constexpr = acc.shape[0]
    half: tl.constexpr = acc.shape[1] // 2
    return tl.split(tl.permute(tl.reshape(acc, [rows, 2, half]), [0, 2, 1]))
