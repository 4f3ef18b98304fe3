"""The Triton linear kernels, interpreted: formats, splits, rows that depend on no other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is an optional package: pip install triton")

from kernels.conftest import KERNEL_DEVICE
from ptd_engine.testing.compare import max_abs_diff, within_reference_noise
from ptd_engine.triton_kernels.linear import MOST_BLOCKS, arrivals_for, blocks_of, linear
from ptd_engine.triton_kernels.linear_weights import (
    FORMATS,
    dequantised,
    pack,
    packed_nbytes,
    splits_for,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
formats = pytest.mark.parametrize("weight_format", FORMATS)
pytestmark = [
    pytest.mark.usefixtures("on_kernel_device"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in matmul"),  # of NaN
]


def make(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    values = torch.randn(shape, generator=generator, device="cpu")
    return values.to(torch.get_default_device()).to(dtype)


ARRIVALS = arrivals_for(KERNEL_DEVICE)


@dtypes
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 70, 33), (3, 150, 64), (66, 20, 160)])
def test_linear(dtype: torch.dtype, bias: bool, rows: int, outputs: int, inputs: int) -> None:
    wide = make(rows, inputs + 5, dtype=dtype, seed=2)
    wide[:, inputs:] = float("nan")
    x, weight = wide[:, :inputs], make(outputs, inputs, dtype=dtype)
    offset = make(outputs, dtype=dtype, seed=1) if bias else None
    packed, out = pack(weight, offset, "float"), torch.empty(rows, outputs, dtype=dtype)
    linear(x, packed, out, ARRIVALS)
    exact = x.double() @ weight.double().T + (0 if offset is None else offset.double())
    plain = torch.nn.functional.linear(x, weight, offset)
    assert within_reference_noise(out, plain, exact)
    logits = torch.empty(rows, outputs)
    linear(x, packed, logits, ARRIVALS)
    assert torch.equal(logits.to(dtype), out)


@pytest.mark.usefixtures("short_splits")
@formats
@pytest.mark.parametrize("inputs", [256, 100])
def test_a_row_has_the_same_bits_beside_any_others(weight_format: str, inputs: int) -> None:
    dtype, outputs = torch.bfloat16, 70
    packed = pack(make(outputs, inputs, dtype=dtype), None, weight_format)
    assert splits_for(1, inputs) == {256: 4, 100: 2}[inputs]
    x = make(130, inputs, dtype=dtype, seed=3)
    x[5] = float("nan")
    x[77] = float("inf")
    all_rows = torch.empty(130, outputs)
    linear(x, packed, all_rows, ARRIVALS)
    assert (ARRIVALS == 0).all()
    healthy = [i for i in range(130) if i not in (5, 77)]
    assert all_rows[healthy].isfinite().all() and all_rows[5].isnan().all()
    for begin, count in ((0, 1), (7, 5), (60, 64), (64, 66)):
        some = torch.empty(count, outputs)
        linear(x[begin : begin + count], packed, some, ARRIVALS)
        assert torch.equal(some.nan_to_num(7), all_rows[begin : begin + count].nan_to_num(7))


@pytest.mark.parametrize("inputs", [40, 128, 500])
@pytest.mark.parametrize("weight_format", ["int8", "int4"])
@pytest.mark.usefixtures("short_splits")
def test_quantised_products_are_those_of_the_stored_numbers(
    weight_format: str, inputs: int
) -> None:
    dtype, outputs = torch.bfloat16, 33
    weight, bias = make(outputs, inputs, dtype=dtype), make(outputs, dtype=dtype, seed=4)
    weight[3] = 0
    weight[4] = 0.5
    packed = pack(weight, bias, weight_format)
    assert packed.nbytes == packed_nbytes(outputs, inputs, True, weight_format, dtype)
    x, out = make(2, inputs, dtype=dtype, seed=5), torch.empty(2, outputs)
    linear(x, packed, out, ARRIVALS)
    stored = dequantised(packed, dtype).double()
    exact = x.double() @ stored.T + bias.double()
    assert max_abs_diff(out, exact) <= 1e-6 * float(x.double().abs().sum() * stored.abs().max())
    step = packed.scales.double().max()
    assert float((stored - weight.double()).abs().max()) <= float(step) * 0.51 + 2**-7
    assert (stored[3] == 0).all() and (stored[4] == 0.5).all()


def test_sizes_of_unpacked_weights() -> None:
    for dtype in DTYPES:
        packed = pack(make(7, 33, dtype=dtype), None, "float")
        assert packed.nbytes == packed_nbytes(7, 33, False, "float", dtype)


@dtypes
@pytest.mark.usefixtures("short_splits")
@pytest.mark.parametrize("inputs", [30, 200])
def test_a_product_ends_a_branch(dtype: torch.dtype, inputs: int) -> None:
    rows, outputs = 5, 150
    weight, x = make(outputs, inputs, dtype=dtype), make(rows, inputs, dtype=dtype, seed=1)
    packed = pack(weight, None, "float")
    blocks = blocks_of(packed, dtype)
    residual, branch = (
        make(rows, outputs, dtype=dtype, seed=2),
        torch.empty(rows, outputs).to(dtype),
    )
    linear(x, packed, branch, ARRIVALS)
    expected = residual + branch
    sums = torch.full((blocks, rows), float("nan"))
    linear(x, packed, residual, ARRIVALS, sums)
    assert torch.equal(residual, expected)
    torch.testing.assert_close(sums.sum(0), residual.float().pow(2).sum(1))


def test_more_rows_than_one_launch_has() -> None:
    rows = MOST_BLOCKS * 64 + 3
    packed = pack(make(2, 8), None, "float")
    x, out = make(rows, 8, seed=1), torch.empty(rows, 2)
    linear(x, packed, out, ARRIVALS)
    torch.testing.assert_close(out, x @ packed.data.T)
    with pytest.raises(ValueError, match=f"{rows} rows: 4096 are the most"):
        linear(x, packed, out, ARRIVALS, torch.empty(1, rows))
