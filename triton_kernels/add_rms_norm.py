"""residual += x; out = round(residual / rms(residual)) * weight, a row a program.

Maths: s = round(residual + x); r = 1 / sqrt(sum(s^2) / H + eps) in fp32; out = round(round(s r) w).
Grid: (N). A program holds its whole row in registers, so the row is read once.
Traffic: N H elements each of x, residual (read and written) and out, 4 N H * 2 bytes in bf16; the
weight comes out of L2. A row's sum has one order, whatever N is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .target import EXACT, narrow, require_dense_rows
from .variants import Variant


@triton.jit
def add_rms_norm_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    x_row: tl.tensor,
    residual_row: tl.tensor,
    out_row: tl.tensor,
    hidden: tl.tensor,
    eps: tl.tensor,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One row; `x_row` and the like are row strides in elements."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < hidden
    total = tl.load(residual + row * residual_row + column, mask=inside, other=0).to(tl.float32)
    if ADD:
        total += tl.load(x + row * x_row + column, mask=inside, other=0).to(tl.float32)
        stored = narrow(total, residual.dtype.element_ty)
        tl.store(residual + row * residual_row + column, stored, mask=inside)
        total = stored.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(total * total, 0) / hidden + eps)
    normed = narrow(total * inverse, out.dtype.element_ty).to(tl.float32)
    gain = tl.load(weight + column, mask=inside, other=0).to(tl.float32)
    tl.store(out + row * out_row + column, narrow(normed * gain, out.dtype.element_ty), mask=inside)


def add_rms_norm(
    x: torch.Tensor | None,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
) -> None:
    """Launch. x [N, H] or None; residual [N, H], updated; weight [H]; out [N, H], written.

    Rows may have any stride; elements of a row lie side by side.
    """
    rows, hidden = residual.shape
    added = residual if x is None else x
    require_dense_rows("add_rms_norm", x=added, residual=residual, weight=weight, out=out)
    add_rms_norm_kernel[(rows,)](
        added,
        residual,
        weight,
        out,
        added.stride(0),
        residual.stride(0),
        out.stride(0),
        hidden,
        eps,
        ADD=x is not None,
        BLOCK=triton.next_power_of_2(hidden),
        num_warps=warps_for(hidden),
        **EXACT,
    )


@triton.jit(do_not_specialize=["rows"])
def square_sums_kernel(
    x: tl.tensor,
    sums: tl.tensor,
    rows: tl.tensor,
    x_row: tl.tensor,
    hidden: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """One part of one row."""
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + row.to(tl.int64) * x_row + column, mask=column < hidden, other=0)
    wide = values.to(tl.float32)
    tl.store(sums + tl.program_id(1) * rows + row, tl.sum(wide * wide, 0))


def square_sums(x: torch.Tensor, sums: torch.Tensor, part: int) -> None:
    """Launch. x [N, H]; sums [ceil(H / part), N] fp32, written: of `part` (2^n) elements each.

    What `linear` leaves behind of a residual that it added to, here of one that nothing was yet
    added to: once a step.
    """
    rows, hidden = x.shape
    square_sums_kernel[(rows, sums.shape[0])](
        x, sums, rows, x.stride(0), hidden, BLOCK=part, num_warps=1, **EXACT
    )


def warps_for(width: int) -> int:
    """Warps of a program that holds a row of this width: some 16 elements a thread."""
    return min(max(triton.next_power_of_2(width) // 512, 1), 16)


def variants() -> list[Variant]:
    """What models of 1B to 70B launch."""
    norms = [
        Variant(
            f"{dtype} {hidden}",
            add_rms_norm_kernel,
            {
                **dict.fromkeys(("x", "residual", "weight", "out"), f"*{dtype}"),
                **dict.fromkeys(("x_row", "residual_row", "out_row", "hidden"), "i32"),
                "eps": "fp32",
            },
            {"ADD": True, "BLOCK": triton.next_power_of_2(hidden)},
            num_warps=warps_for(hidden),
            aligned=("x", "residual", "weight", "out", "x_row", "residual_row", "out_row"),
            quick=dtype == "bf16" and hidden == 4096,
        )
        for dtype in ("bf16", "fp16", "fp32")
        for hidden in (2048, 4096, 8192)
    ]
    sums = [
        Variant(
            dtype,
            square_sums_kernel,
            {"x": f"*{dtype}", "sums": "*fp32", "rows": "i32", "x_row": "i32", "hidden": "i32"},
            {"BLOCK": 64 if dtype == "fp32" else 128},
            num_warps=1,
            aligned=("x", "sums", "x_row", "hidden"),
        )
        for dtype in ("bf16", "fp16", "fp32")
    ]
    return norms + sums
