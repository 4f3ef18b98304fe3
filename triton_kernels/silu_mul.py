"""out = silu(gate) * up for a fused projection [gate | up].

Maths: out = round(round(g / (1 + exp(-g))) u), in fp32 between the roundings.
Grid: (N, blocks of I). Traffic: 3 N I elements. `linear` does the same where it multiplies, and
saves this launch and its traffic.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .target import EXACT, narrow, require_dense_rows
from .variants import Variant

_BLOCK = 1024


@triton.jit
def silu_times(gate: tl.tensor, up: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """round(silu(gate)) * up for fp32 values that `dtype` holds; still fp32."""
    activated = narrow(gate / (1.0 + tl.exp(-gate)), dtype).to(tl.float32)
    return activated * up


@triton.jit
def silu_mul_kernel(
    gate_up: tl.tensor,
    out: tl.tensor,
    gate_up_row: tl.tensor,
    out_row: tl.tensor,
    inner: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """A block of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < inner
    source = gate_up + row * gate_up_row + column
    gate = tl.load(source, mask=inside, other=0).to(tl.float32)
    up = tl.load(source + inner, mask=inside, other=0).to(tl.float32)
    dtype: tl.constexpr = out.dtype.element_ty
    product = narrow(silu_times(gate, up, dtype), dtype)
    tl.store(out + row * out_row + column, product, mask=inside)


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """Launch. gate_up [N, 2 I], gate first; out [N, I], written. Rows may have any stride."""
    rows, inner = out.shape
    require_dense_rows("silu_mul", gate_up=gate_up, out=out)
    silu_mul_kernel[(rows, triton.cdiv(inner, _BLOCK))](
        gate_up, out, gate_up.stride(0), out.stride(0), inner, BLOCK=_BLOCK, **EXACT
    )


def variants() -> list[Variant]:
    """One form a dtype."""
    return [
        Variant(
            dtype,
            silu_mul_kernel,
            {
                **dict.fromkeys(("gate_up", "out"), f"*{dtype}"),
                **dict.fromkeys(("gate_up_row", "out_row", "inner"), "i32"),
            },
            {"BLOCK": _BLOCK},
            aligned=("gate_up", "out", "gate_up_row", "out_row", "inner"),
            quick=dtype == "bf16",
        )
        for dtype in ("bf16", "fp16", "fp32")
    ]
