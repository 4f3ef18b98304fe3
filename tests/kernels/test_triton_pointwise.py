"""The Triton kernels without matrices, interpreted, against the operations in plain torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is an optional package: pip install triton")

from ptd_engine.kernels import torch_ref
from ptd_engine.testing.compare import within_reference_noise
from ptd_engine.triton_kernels.add_rms_norm import add_rms_norm
from ptd_engine.triton_kernels.embed import embed
from ptd_engine.triton_kernels.kv_commit import kv_commit
from ptd_engine.triton_kernels.rope_kv_write import rope_kv_write
from ptd_engine.triton_kernels.silu_mul import silu_mul

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
pytestmark = [
    pytest.mark.usefixtures("on_kernel_device"),
    pytest.mark.filterwarnings("ignore:overflow encountered in exp"),  # exp(200) is inf
]


def make(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    values = torch.randn(shape, generator=generator, device="cpu")
    return values.to(torch.get_default_device()).to(dtype)


def strided(tensor: Tensor) -> Tensor:
    """The same rows with others between them, which hold NaN."""
    wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] + 3), float("nan"), dtype=tensor.dtype)
    wide[..., : tensor.shape[-1]] = tensor
    return wide[..., : tensor.shape[-1]]


@dtypes
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("hidden", [48, 100])
def test_add_rms_norm(dtype: torch.dtype, added: bool, hidden: int) -> None:
    x = strided(make(5, hidden, dtype=dtype)) if added else None
    residual, weight = strided(make(5, hidden, dtype=dtype, seed=1)), make(hidden, dtype=dtype)
    expected_residual, expected = residual.clone(), torch.empty(5, hidden, dtype=dtype)
    torch_ref.add_rms_norm(x, expected_residual, weight, 1e-5, expected)
    wide = residual.double() + (0 if x is None else x.double())
    exact = wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    out = strided(torch.zeros(5, hidden, dtype=dtype))
    before = residual.clone()
    add_rms_norm(x, residual, weight, 1e-5, out)
    assert torch.equal(residual, expected_residual)
    assert within_reference_noise(out, expected, exact.float())
    alone, row = torch.empty(1, hidden, dtype=dtype), before[3:4].clone()
    add_rms_norm(None if x is None else x[3:4], row, weight, 1e-5, alone)
    assert torch.equal(alone, out[3:4])
    assert torch.equal(row, residual[3:4])


def test_a_row_of_nan_stays_alone() -> None:
    residual, out = make(3, 40), torch.empty(3, 40)
    residual[1, 7] = float("nan")
    add_rms_norm(None, residual, torch.ones(40), 1e-5, out)
    assert out[1].isnan().all()
    assert not out[[0, 2]].isnan().any()


@dtypes
@pytest.mark.parametrize("inner", [13, 1500])
def test_silu_mul(dtype: torch.dtype, inner: int) -> None:
    gate_up, out = strided(make(3, 2 * inner, dtype=dtype)), torch.empty(3, inner, dtype=dtype)
    gate_up[0, 0] = -200.0
    expected = torch.empty_like(out)
    torch_ref.silu_mul(gate_up, expected)
    silu_mul(gate_up, out)
    gate, up = gate_up.double().chunk(2, -1)
    assert within_reference_noise(out, expected, (gate / (1 + (-gate).exp()) * up).float())


@dtypes
def test_embed(dtype: torch.dtype) -> None:
    weight, out = strided(make(11, 1030, dtype=dtype)), torch.empty(3, 1030, dtype=dtype)
    ids = torch.tensor([10, 0, 10], dtype=torch.int32)
    embed(ids, weight, out)
    assert torch.equal(out, weight[ids.long()])


@dtypes
@pytest.mark.parametrize(("head_dim", "normed"), [(8, False), (8, True), (80, True), (128, True)])
def test_rope_kv_write(dtype: torch.dtype, head_dim: int, normed: bool) -> None:
    n, q_heads, kv_heads, capacity = 3, 3, 2, 12
    qkv = strided(make(n, (q_heads + 2 * kv_heads) * head_dim, dtype=dtype))
    norms = [make(head_dim, dtype=dtype, seed=seed) if normed else None for seed in (1, 2)]
    angles = make(50, head_dim // 2, seed=3)
    table = torch.cat((angles.cos(), angles.sin()), -1)
    positions, prefix = torch.tensor([9, 44, 9]).int(), torch.tensor([5]).int()

    def run(kernel: Callable[..., None], to: torch.dtype) -> tuple[Tensor, Tensor]:
        caches = torch.full((2, kv_heads, capacity + 2, head_dim), 77.0, dtype=to)
        k, v = caches[:, :, :capacity].unbind()
        q = torch.empty(n, q_heads, head_dim, dtype=to)
        source = strided(qkv.to(to)) if kernel is rope_kv_write else qkv.to(to).contiguous()
        weights = [None if norm is None else norm.to(to) for norm in norms]
        kernel(source, *weights, 1e-6, table, positions, prefix, k, v, q)
        return q, caches

    q, caches = run(rope_kv_write, dtype)
    expected_q, expected = run(torch_ref.rope_kv_write, dtype)
    exact_q, exact = run(torch_ref.rope_kv_write, torch.float32)
    assert within_reference_noise(q, expected_q, exact_q)
    written = slice(5, 5 + n)
    keys = (caches[0, :, written], expected[0, :, written], exact[0, :, written])
    assert within_reference_noise(*keys)
    assert torch.equal(caches[1], expected[1])  # values are copied
    assert (caches[0, :, :5] == 77).all() and (caches[0, :, 5 + n :] == 77).all()


@pytest.mark.parametrize(
    "path", [[0, 3, 7], [0, 1, 2], [], [0, 2, 3, 4, 9], [5, 6, 7, 8], [0, 1, 3]], ids=str
)
@dtypes
def test_commit_moves_the_path_and_nothing_else(dtype: torch.dtype, path: list[int]) -> None:
    start, n, guard, capacity = 13, len(path), 3, 30
    block = make(2, 2, 2, capacity + 2 * guard, 5, dtype=dtype)
    expected = block.clone()
    for i, node in enumerate(path):
        expected[:, :, :, guard + start + i] = block[:, :, :, guard + start + node]
    k, v = (half[:, :, guard : guard + capacity] for half in block.unbind(0))
    source = [start + i for i in path] + [start + i for i in range(n, 24)]
    numbers = (torch.tensor([number], dtype=torch.int32) for number in (start + n, n))
    kv_commit(k, v, torch.tensor(source, dtype=torch.int32), *numbers)
    assert torch.equal(block, expected)


def test_caches_of_different_strides_are_refused() -> None:
    k, v = torch.empty(1, 2, 8, 4), torch.empty(1, 2, 9, 4)[:, :, :8]
    one = torch.ones(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="keys and values lie apart"):
        kv_commit(k, v, one, one, one)
