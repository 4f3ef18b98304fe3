"""out = x @ w.T + bias; or, in the same launch, residual += out with the sums of its squares.

Grid: (blocks of 64 rows, blocks of outputs * splits). Arithmetic, splits, traffic and formats:
`linear_product`. The second form ends a branch of a layer: residual = round(residual + round(y)),
and sums[tile, row] = the sum of the squares of what the tile wrote, from which the next product
has its RMSNorm without a launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from .linear_product import joined, product
from .linear_weights import (
    FORMATS,
    MOST_SPLIT_TILES,
    ROWS,
    PackedWeight,
    splits_for,
    tile_for,
)
from .target import EXACT, LaunchError, narrow, require_dense_rows
from .variants import Variant

# Dtype of the activations, by Triton's and by torch's name, and format of the weights.
TYPES = (
    *(("bf16", torch.bfloat16, name) for name in FORMATS),
    ("fp16", torch.float16, "float"),
    ("fp32", torch.float32, "float"),
)
MOST_BLOCKS = 64  # of rows in one launch: bounds the arrivals that are counted


@triton.jit(do_not_specialize=["rows"])
def linear_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    scales: tl.tensor,
    minimums: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    partial: tl.tensor,
    arrivals: tl.tensor,
    rows: tl.tensor,
    x_row: tl.tensor,
    out_row: tl.tensor,
    width: tl.tensor,
    outputs: tl.tensor,
    FORMAT: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    MASKED: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """One tile over one split; `out` is the residual where ADD."""
    first = tl.program_id(0) * ROWS
    block = tl.program_id(1) // SPLITS
    split = tl.program_id(1) % SPLITS
    tile = block * tl.num_programs(0) + tl.program_id(0)
    output = (block * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    exists = output < outputs
    acc = product(
        x, weight, scales, minimums, output, exists, first, split, rows, x_row, width, x, x,
        FORMAT, False, MASKED, SPLITS, ROWS, COLUMNS, DEPTH,
    )  # fmt: skip
    acc, last = joined(
        acc, scales, output, exists, first, rows, tile, split, partial, arrivals,
        FORMAT, SPLITS, ROWS, COLUMNS,
    )  # fmt: skip
    if last:
        if BIAS:
            acc += tl.load(bias + output, mask=exists, other=0).to(tl.float32)[None, :]
        m = first + tl.arange(0, ROWS)
        inside = (m < rows)[:, None] & exists[None, :]
        target = out + m.to(tl.int64)[:, None] * out_row + output[None, :]
        value = narrow(acc, out.dtype.element_ty)
        if ADD:
            old = tl.load(target, mask=inside, other=0).to(tl.float32)
            value = narrow(old + value.to(tl.float32), out.dtype.element_ty)
            wide = tl.where(inside, value.to(tl.float32), 0.0)
            tl.store(sums + block * rows + m, tl.sum(wide * wide, 1), mask=m < rows)
        tl.store(target, value, mask=inside)


def blocks_of(weight: PackedWeight, dtype: torch.dtype) -> int:
    """Blocks of outputs: the parts in which `linear` gives sums of squares."""
    return triton.cdiv(weight.out_features, tile_for(weight.weight_format, dtype).columns)


def arrivals_for(device: torch.device) -> torch.Tensor:
    """The `arrivals` of every launch on a device."""
    return torch.zeros(MOST_BLOCKS * MOST_SPLIT_TILES, dtype=torch.int32, device=device)


def row_blocks_of(rows: int) -> int:
    """Blocks of rows of a launch whose arrivals are counted.

    Raises:
        LaunchError: more than there are counters for.
    """
    blocks = int(triton.cdiv(rows, ROWS))
    if blocks > MOST_BLOCKS:
        raise LaunchError(f"{rows} rows: {MOST_BLOCKS * ROWS} are the most of a fused product")
    return blocks


def scratch(
    x: torch.Tensor, tiles: int, splits: int, columns: int, row_blocks: int
) -> torch.Tensor:
    """Room for the sums of the splits."""
    if splits == 1:
        return x
    return x.new_empty(tiles * row_blocks * splits * ROWS * columns, dtype=torch.float32)


def linear(
    x: torch.Tensor,
    weight: PackedWeight,
    out: torch.Tensor,
    arrivals: torch.Tensor,
    sums: torch.Tensor | None = None,
) -> None:
    """Launch.

    Args:
        x: [M, in], rows of any stride.
        weight: [out, in] and its bias.
        out: [M, out] of any floating dtype; written, or added to where `sums` is given.
        arrivals: `arrivals_for` the device, zeros before and after: one stream at a time.
        sums: fp32 [blocks of outputs, M], written: the squares of the new `out`.
    """
    rows = x.shape[0]
    require_dense_rows("linear", x=x, out=out)
    tile = tile_for(weight.weight_format, x.dtype)
    blocks = triton.cdiv(weight.out_features, tile.columns)
    splits = splits_for(blocks, weight.in_features)
    row_blocks = triton.cdiv(rows, ROWS)
    if row_blocks > MOST_BLOCKS:
        if sums is not None:
            most = MOST_BLOCKS * ROWS
            raise LaunchError(f"{rows} rows: {most} are the most with sums of squares")
        most = MOST_BLOCKS * ROWS
        for begin in range(0, rows, most):
            linear(x[begin : begin + most], weight, out[begin : begin + most], arrivals)
        return
    linear_kernel[(row_blocks, blocks * splits)](
        x,
        weight.data,
        weight.scales,
        weight.minimums,
        x if weight.bias is None else weight.bias,
        out,
        x if sums is None else sums,
        scratch(x, blocks, splits, tile.columns, row_blocks),
        arrivals,
        rows,
        x.stride(0),
        out.stride(0),
        weight.in_features,
        weight.out_features,
        FORMAT=weight.weight_format,
        BIAS=weight.bias is not None,
        ADD=sums is not None,
        MASKED=weight.in_features % tile.depth != 0,
        SPLITS=splits,
        ROWS=ROWS,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **EXACT,
    )


def weight_types(weight_format: str, dtype: str) -> Mapping[str, str]:
    """Triton's types of a weight's tensors."""
    if weight_format == "float":
        return dict.fromkeys(("weight", "scales", "minimums"), f"*{dtype}")
    if weight_format == "int8":
        return {"weight": "*i8", "scales": "*fp32", "minimums": "*i8"}
    return {"weight": "*u8", "scales": "*bf16", "minimums": "*bf16"}


def variants() -> list[Variant]:
    """Formats, dtypes and both ends, with K split and whole."""
    found = []
    for dtype, torch_dtype, weight_format in TYPES:
        tile = tile_for(weight_format, torch_dtype)
        for add, splits in ((False, 1), (True, 4)):
            constants: dict[str, Any] = {
                "FORMAT": weight_format,
                "BIAS": True,
                "ADD": add,
                "MASKED": False,
                "SPLITS": splits,
                "ROWS": ROWS,
                "COLUMNS": tile.columns,
                "DEPTH": tile.depth,
            }
            found.append(
                Variant(
                    f"{dtype} {weight_format}{' add' if add else ''} splits {splits}",
                    linear_kernel,
                    {
                        "x": f"*{dtype}",
                        **weight_types(weight_format, dtype),
                        **dict.fromkeys(("bias", "out"), f"*{dtype}"),
                        **dict.fromkeys(("sums", "partial"), "*fp32"),
                        "arrivals": "*i32",
                        **dict.fromkeys(("rows", "x_row", "out_row", "width", "outputs"), "i32"),
                    },
                    constants,
                    num_warps=tile.warps,
                    num_stages=tile.stages,
                    aligned=(
                        *("x", "weight", "scales", "minimums", "bias", "out", "sums", "partial"),
                        *("x_row", "out_row", "width", "outputs"),
                    ),
                    quick=dtype == "bf16" and add and weight_format != "int8",
                )
            )
    return found
