"""`kernels --gpu`: products with a model's matrices, against cuBLAS. Checked before they are timed.

One matrix at a time is on the device, with all numbers of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.gpu_cases import CUBLAS, LinearCase
from bench.gpu_timing import Timer
from ptd_engine.kernels import Ops, WeightFormat
from ptd_engine.testing.compare import max_abs_diff

DTYPE = torch.bfloat16
_ROUNDINGS = 8
LABELS: Mapping[WeightFormat, str] = {"float": "bf16", "int8": "int8", "int4": "int4"}

Row = dict[str, Any]


def measure_linear(
    case: LinearCase, rows: Sequence[int], ops: Mapping[WeightFormat, Ops], timer: Timer
) -> Iterator[Row]:
    """cuBLAS in bf16 and the Triton kernel in each format: rows with `us`, or with `error`.

    A result must be as near to float32 as torch's in bf16 is (twice its distance), with what the
    format stores; and each of its rows must have the bits that it has among the most rows.

    Args:
        case: the matrix.
        rows: numbers of rows, rising.
        ops: by format of the weights.
        timer: what times; its device is that of `ops`.
    """
    device = timer.device
    weight = _random(case.outputs, case.inputs, seed=1, device=device) * case.inputs**-0.5
    weight, x = weight.to(DTYPE), _random(rows[-1], case.inputs, seed=2, device=device).to(DTYPE)
    named = {"model": case.model, "matrix": case.matrix, "shape": [case.outputs, case.inputs]}

    def timed(kernel: str, n: int, call: Callable[[], object], weight_nbytes: int) -> Row:
        timing = timer.time(call)
        row = named | {"kernel": kernel, "rows": n, "us": timing.us, "us_min": timing.us_min}
        nbytes = case.nbytes(n, DTYPE.itemsize, weight_nbytes)
        return row | {"captured": timing.captured, "bytes": nbytes}

    for n in rows:
        part = x[:n]
        F.linear(part, weight)
        yield timed(CUBLAS, n, partial(F.linear, part, weight), weight.nbytes)
    for weight_format, own in ops.items():
        label = f"triton {LABELS[weight_format]}"
        packed = own.pack_linear(weight, None, head=case.head)
        reference, allowed = _reference(x, packed.handle)
        whole = torch.empty(rows[-1], case.outputs, dtype=DTYPE, device=device)
        own.linear(x, packed, whole)
        for n in rows:
            part, out = x[:n], torch.full_like(whole[:n], float("nan"))

            call = partial(own.linear, part, packed, out)

            call()
            error = max_abs_diff(out, reference[:n])
            same = torch.equal(out, whole[:n])
            if not error <= allowed:  # NaN as well
                found = error if math.isfinite(error) else -1.0
                yield named | {"kernel": label, "rows": n, "error": found}
                continue
            yield timed(label, n, call, packed.nbytes) | {"bits_equal": same}


def _random(*shape: int, seed: int, device: torch.device) -> Tensor:
    return torch.randn(shape, generator=torch.Generator(device).manual_seed(seed), device=device)


def _reference(x: Tensor, packed: Any) -> tuple[Tensor, float]:
    """The product in float32 of the stored numbers, and how far from it a result may be."""
    from ptd_engine.triton_kernels.linear_weights import dequantised

    stored = dequantised(packed, DTYPE)
    reference = x.float() @ stored.float().T
    same = F.linear(x, stored.to(DTYPE)) if packed.weight_format != "int8" else reference.to(DTYPE)
    noise = float(reference.abs().max()) * _ROUNDINGS * torch.finfo(torch.float32).eps
    return reference, 2 * max_abs_diff(same, reference) + noise
