"""out = silu(g) * u with [g | u] = rmsnorm(x) @ w.T + bias: norm, product and activation in one.

Grid: (blocks of 64 rows, blocks of outputs * splits). A tile multiplies as many rows of the gate's
matrix as of the up matrix; `linear_product` has the rest. Against three launches it saves the
traffic of the normed rows (2 M H) and of [g | u] (4 M I elements, 3.7 MB at 64 rows of
Llama-3.1-8B, where the weights are 235 MB), and two launches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .linear import TYPES, row_blocks_of, scratch, weight_types
from .linear_product import halves, normed_product
from .linear_weights import ROWS, PackedWeight, splits_for, tile_for
from .silu_mul import silu_times
from .target import EXACT, narrow
from .variants import Variant


@triton.jit(do_not_specialize=["rows"])
def gate_up_kernel(
    x: tl.tensor,
    sums: tl.tensor,
    norm: tl.tensor,
    weight: tl.tensor,
    scales: tl.tensor,
    minimums: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    arrivals: tl.tensor,
    rows: tl.tensor,
    x_row: tl.tensor,
    out_row: tl.tensor,
    width: tl.tensor,
    inner: tl.tensor,
    eps: tl.tensor,
    FORMAT: tl.constexpr,
    BIAS: tl.constexpr,
    PARTS: tl.constexpr,
    MASKED: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """One tile over one split."""
    first = tl.program_id(0) * ROWS
    block = tl.program_id(1) // SPLITS
    split = tl.program_id(1) % SPLITS
    tile = block * tl.num_programs(0) + tl.program_id(0)
    half: tl.constexpr = COLUMNS // 2
    lane = tl.arange(0, COLUMNS)
    place = block * half + lane % half
    exists = place < inner
    output = (place + tl.where(lane < half, 0, inner)).to(tl.int64)
    acc, last = normed_product(
        x, sums, norm, weight, scales, minimums, output, exists, first, tile, split, rows, x_row,
        width, eps, partial, arrivals, FORMAT, PARTS, MASKED, SPLITS, ROWS, COLUMNS, DEPTH,
    )  # fmt: skip
    if last:
        m = first + tl.arange(0, ROWS)
        dtype: tl.constexpr = out.dtype.element_ty
        if BIAS:
            acc += tl.load(bias + output, mask=exists, other=0).to(tl.float32)[None, :]
        gate, up = halves(narrow(acc, dtype).to(tl.float32))
        column = block * half + tl.arange(0, half)
        inside = (m < rows)[:, None] & (column < inner)[None, :]
        target = out + m.to(tl.int64)[:, None] * out_row + column[None, :]
        tl.store(target, narrow(silu_times(gate, up, dtype), dtype), mask=inside)


def norm_gate_up(
    x: torch.Tensor,
    sums: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    weight: PackedWeight,
    out: torch.Tensor,
    arrivals: torch.Tensor,
) -> None:
    """Launch.

    x [M, H], M <= 4096; sums [PARTS, M] fp32, whose columns add up to the sums of squares of x's
    rows; norm [H]; weight [2 I, H], gate first; out [M, I] of x's dtype, written; arrivals as for
    `linear`.
    """
    rows, inner = out.shape
    tile = tile_for(weight.weight_format, x.dtype)
    blocks = triton.cdiv(inner, tile.columns // 2)
    splits = splits_for(blocks, weight.in_features)
    row_blocks = row_blocks_of(rows)
    gate_up_kernel[(row_blocks, blocks * splits)](
        x,
        sums,
        norm,
        weight.data,
        weight.scales,
        weight.minimums,
        x if weight.bias is None else weight.bias,
        out,
        scratch(x, blocks, splits, tile.columns, row_blocks),
        arrivals,
        rows,
        x.stride(0),
        out.stride(0),
        weight.in_features,
        inner,
        eps,
        FORMAT=weight.weight_format,
        BIAS=weight.bias is not None,
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
    """Formats and dtypes, for a hidden size of 4096."""
    tensors = ("x", "norm", "bias", "out")
    return [
        Variant(
            f"{dtype} {weight_format} splits {splits}",
            gate_up_kernel,
            {
                **dict.fromkeys(tensors, f"*{dtype}"),
                **weight_types(weight_format, dtype),
                **dict.fromkeys(("sums", "partial"), "*fp32"),
                "arrivals": "*i32",
                **dict.fromkeys(("rows", "x_row", "out_row", "width", "inner"), "i32"),
                "eps": "fp32",
            },
            {
                "FORMAT": weight_format,
                "BIAS": False,
                "PARTS": 4096 // tile.columns,
                "MASKED": False,
                "SPLITS": splits,
                "ROWS": ROWS,
                "COLUMNS": tile.columns,
                "DEPTH": tile.depth,
            },
            num_warps=tile.warps,
            num_stages=tile.stages,
            aligned=(
                *(*tensors, "weight", "scales", "minimums", "sums", "partial"),
                *("x_row", "out_row", "width", "inner"),
            ),
            quick=dtype == "bf16" and splits == 1 and weight_format == "float",
        )
        for dtype, torch_dtype, weight_format in TYPES
        for tile in (tile_for(weight_format, torch_dtype),)
        for splits in (1, 4)
    ]
