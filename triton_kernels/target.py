"""What every Triton kernel here has to know of where it runs: a GPU, or Triton's interpreter.

The interpreter (TRITON_INTERPRET=1, set before Triton is imported) runs kernels on CPU tensors with
numpy. It holds bfloat16 as raw 16-bit integers, so that arithmetic on it is silently wrong, and its
conversion from fp32 truncates. Hence the rule for kernels: widen what was loaded to fp32, multiply
matrices with `dot`, and store through `narrow`. On a GPU both compile to what they look like.

`EXACT` goes with every launch: contraction of products and sums into fused multiply-adds differs
between kernels (and its default between Triton 3.6 and 3.9), so it is off, and a kernel that wants
one writes tl.fma.
"""

from __future__ import annotations

from types import MappingProxyType

import torch
import triton
import triton.language as tl

INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))
EXACT = MappingProxyType({"enable_fp_fusion": False})


@triton.jit
def dot(a: tl.tensor, b: tl.tensor, acc: tl.tensor) -> tl.tensor:
    """acc + a @ b with fp32 accumulation; fp32 operands are multiplied in full precision."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def narrow(x: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """The fp32 values of `x` in `dtype`, rounded to nearest, ties to even."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        x = tl.where(x != x, x, rounded.to(tl.float32, bitcast=True))
    return x.to(dtype)


class LaunchError(ValueError):
    """A launcher was given what no kernel serves: the field, its value, what is allowed."""


def require_dense_rows(kernel: str, **tensors: torch.Tensor) -> None:
    """The elements of a row lie side by side: kernels take row strides and no others.

    Raises:
        LaunchError: those of one do not.
    """
    for name, tensor in tensors.items():
        if tensor.stride(-1) != 1:
            strides = tensor.stride()
            raise LaunchError(
                f"Triton {kernel}: strides of {name} are {strides}, allowed: 1 at last"
            )


def unavailable(device: torch.device) -> str | None:
    """None where kernels run on tensors of `device`, else the reason why not."""
    if INTERPRETED.value:
        return None if device.type == "cpu" else "TRITON_INTERPRET is set: cpu tensors only"
    if device.type != "cuda":
        return f"Triton kernels run on cuda, not on {device.type}"
    if torch.version.hip is not None:
        return "written for NVIDIA GPUs"
    if compute_capability(device) < 80:
        return f"needs compute capability 8.0, {device} has {compute_capability(device) / 10}"
    return None


def compute_capability(device: torch.device) -> int:
    """80 for 8.0, and so on; what is interpreted passes for 90."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
