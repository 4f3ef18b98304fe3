"""out[i] = row token_ids[i] of a matrix.

Grid: (N, blocks of H). Traffic: 2 N H elements.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .target import require_dense_rows
from .variants import Variant

_BLOCK = 1024


@triton.jit
def embed_kernel(
    token_ids: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    weight_row: tl.tensor,
    out_row: tl.tensor,
    hidden: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """A block of one row."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(token_ids + row).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < hidden
    values = tl.load(weight + token * weight_row + column, mask=inside)
    tl.store(out + row * out_row + column, values, mask=inside)


def embed(token_ids: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """Launch. token_ids [N] int32 in [0, V); weight [V, H]; out [N, H] of its dtype, written."""
    rows, hidden = out.shape
    require_dense_rows("embed", token_ids=token_ids, weight=weight, out=out)
    embed_kernel[(rows, triton.cdiv(hidden, _BLOCK))](
        token_ids, weight, out, weight.stride(0), out.stride(0), hidden, BLOCK=_BLOCK
    )


def variants() -> list[Variant]:
    """One form a dtype."""
    return [
        Variant(
            dtype,
            embed_kernel,
            {
                "token_ids": "*i32",
                **dict.fromkeys(("weight", "out"), f"*{dtype}"),
                **dict.fromkeys(("weight_row", "out_row", "hidden"), "i32"),
            },
            {"BLOCK": _BLOCK},
            aligned=("weight", "out", "weight_row", "out_row", "hidden"),
        )
        for dtype in ("bf16", "fp16", "fp32")
    ]
