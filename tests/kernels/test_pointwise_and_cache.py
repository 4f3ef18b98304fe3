"""Norm, rotation, activation, linear, cache commit; and that nothing here waits for the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ptd_engine.kernels import Ops, StepScratch, select_ops
from ptd_engine.kernels.torch_ref import LinearPacker, packing_unavailable
from ptd_engine.testing.compare import max_abs_diff, tree_mask, within_reference_noise

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def make(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@dtypes
def test_add_rms_norm(dtype: torch.dtype) -> None:
    ops = select_ops("torch", dtype=dtype)
    x, residual, weight = make(5, 48, dtype=dtype), make(5, 48, dtype=dtype, seed=1), make(48)
    weight = weight.to(dtype)
    out = torch.empty_like(x)
    summed = residual + x
    ops.add_rms_norm(x, residual, weight, 1e-5, out)
    assert torch.equal(residual, summed)
    wide = summed.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    assert torch.equal(out, weight * normed.to(dtype))
    again = torch.empty_like(x)
    ops.add_rms_norm(None, residual, weight, 1e-5, again)
    assert torch.equal(again, out)
    assert torch.equal(residual, summed)
    alone = torch.empty(1, 48, dtype=dtype)
    ops.add_rms_norm(None, residual[3:4].clone(), weight, 1e-5, alone)
    assert torch.equal(alone[0], out[3])


@dtypes
def test_silu_mul(dtype: torch.dtype) -> None:
    gate_up, out = make(4, 26, dtype=dtype), torch.empty(4, 13, dtype=dtype)
    select_ops("torch", dtype=dtype).silu_mul(gate_up, out)
    gate, up = gate_up[:, :13], gate_up[:, 13:]
    assert torch.equal(out, torch.nn.functional.silu(gate) * up)


@dtypes
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_linear(dtype: torch.dtype, packed: bool, bias: bool, rows: int) -> None:
    ops = select_ops("torch", dtype=dtype)
    if packed and (reason := packing_unavailable(torch.device("cpu"), dtype)):
        pytest.skip(reason)
    weight, offset = make(70, 33, dtype=dtype), make(70, dtype=dtype, seed=1) if bias else None
    x, out = make(rows, 33, dtype=dtype, seed=2), torch.empty(rows, 70, dtype=dtype)
    laid_out = LinearPacker(packed)(weight, offset)
    assert (laid_out.out_features, laid_out.in_features) == (70, 33)
    assert laid_out.nbytes == (70 * 33 + (70 if bias else 0)) * dtype.itemsize
    ops.linear(x, laid_out, out)
    exact = x.double() @ weight.double().T + (0 if offset is None else offset.double())
    plain = torch.nn.functional.linear(x, weight, offset)
    assert within_reference_noise(out, plain, exact)


@pytest.mark.parametrize("normed", [False, True])
@dtypes
def test_rope_kv_write(dtype: torch.dtype, normed: bool) -> None:
    ops = select_ops("torch", dtype=dtype, head_dim=8)
    qkv = make(3, (4 + 2 * 2) * 8, dtype=dtype)
    q_norm, k_norm = make(8, dtype=dtype, seed=1), make(8, dtype=dtype, seed=2)
    angles = make(50, 4, seed=3)
    table = torch.cat((angles.cos(), angles.sin()), -1)
    k, v = torch.full((2, 2, 12, 8), 77.0, dtype=dtype).unbind(0)
    q = torch.empty(3, 4, 8, dtype=dtype)
    positions = torch.tensor([9, 44, 9], dtype=torch.int32)
    norms = (q_norm, k_norm) if normed else (None, None)
    before = qkv.clone()
    ops.rope_kv_write(
        qkv, *norms, 1e-6, table, positions, torch.tensor([5], dtype=torch.int32), k, v, q
    )
    assert torch.equal(qkv, before)
    heads = qkv.view(3, 8, 8).double()
    if normed:
        rms = (heads.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        gain = torch.cat((q_norm.expand(4, 8), k_norm.expand(2, 8)))
        heads[:, :6] = heads[:, :6] * rms[:, :6] * gain.double()
    cos, sin = table.double()[positions.long()][:, None].chunk(2, -1)
    low, high = heads[:, :6, :4], heads[:, :6, 4:]
    rotated = torch.cat((low * cos - high * sin, high * cos + low * sin), -1)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    assert max_abs_diff(q, rotated[:, :4]) <= tolerance
    assert max_abs_diff(k[:, 5:8].transpose(0, 1), rotated[:, 4:]) <= tolerance
    assert torch.equal(v[:, 5:8].transpose(0, 1), qkv.view(3, 8, 8)[:, 6:])
    for cache in (k, v):
        assert (cache[:, :5] == 77).all()
        assert (cache[:, 8:] == 77).all()


LAYERS, HEADS, CAPACITY, DIM, GUARD = 3, 2, 40, 4, 5


@pytest.mark.parametrize(
    "path",
    [[0, 3, 7], [0, 1, 2], [1, 2, 4], [0], [], [0, 2, 3, 4, 9], [5, 6, 7, 8], [0, 1, 3]],
    ids=str,
)
@pytest.mark.parametrize("entries", [None, 16])
def test_commit_moves_the_path_and_nothing_else(path: list[int], entries: int | None) -> None:
    start, n = 13, len(path)
    entries = n if entries is None else entries
    block = make(2, LAYERS, HEADS, CAPACITY + 2 * GUARD, DIM)
    before = block.clone()
    k, v = (half[:, :, GUARD : GUARD + CAPACITY] for half in block.unbind(0))
    source = [start + i for i in path] + [start + i for i in range(n, entries)]
    select_ops("torch").kv_commit(
        k,
        v,
        torch.tensor(source, dtype=torch.int32),
        torch.tensor([start + n], dtype=torch.int32),
        torch.tensor([n], dtype=torch.int32),
    )
    expected = before.clone()
    for i, node in enumerate(path):
        expected[:, :, :, GUARD + start + i] = before[:, :, :, GUARD + start + node]
    assert torch.equal(block, expected)


def test_commit_entries_beyond_the_cache_are_harmless() -> None:
    k, v = make(2, 1, 1, 20, 4).unbind(0)
    before = k.clone()
    source = torch.tensor([17, 19, *range(18, 32)], dtype=torch.int32)  # n_commit 2 of 16
    select_ops("torch").kv_commit(
        k,
        v,
        source,
        torch.tensor([18], dtype=torch.int32),
        torch.tensor([2], dtype=torch.int32),
    )
    assert torch.equal(k[:, :, 16], before[:, :, 17])
    assert torch.equal(k[:, :, 17], before[:, :, 19])
    assert torch.equal(k[:, :, 18:], before[:, :, 18:])


class NoHostSync(TorchDispatchMode):
    """Raises where an op would wait for the device or take its shape from data."""

    forbidden = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        assert not name.startswith(self.forbidden), f"host sync: {func}"
        if name == "index":
            assert all(i is None or i.dtype != torch.bool for i in args[1]), "boolean index"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("exact", [False, True])
def test_no_op_waits_for_the_host(exact: bool) -> None:
    ops: Ops = select_ops("torch", head_dim=8)
    n, bound = 6, 26 if exact else 31
    prefix = torch.tensor([20], dtype=torch.int32)
    k, v = make(2, 2, 2, 40, 8).unbind(0)
    q, out, shared = torch.empty(n, 4, 8), torch.empty(n, 32), StepScratch(exact)
    weight = ops.pack_linear(make(7, 32), None)
    tokens = torch.empty(n, 4, dtype=torch.int32)
    mask, table = tree_mask([-1, 0, 0, 1, 1, 4]), make(30, 8)
    positions = torch.arange(n, dtype=torch.int32)
    with NoHostSync():
        ops.add_rms_norm(make(n, 8), make(n, 8), torch.ones(8), 1e-5, torch.empty(n, 8))
        ops.rope_kv_write(
            make(n, 64), torch.ones(8), torch.ones(8), 1e-5, table, positions, prefix,
            k[0], v[0], q, shared,
        )  # fmt: skip
        ops.tree_attention(q, k[0], v[0], mask, prefix, bound, 0.3, out, shared)
        ops.causal_attention(q, k[0], v[0], prefix, bound, 0.3, out, StepScratch(exact))
        ops.linear(out, weight, torch.empty(n, 7))
        ops.silu_mul(make(n, 8), torch.empty(n, 4))
        sampling = torch.tensor([3.0, 0.9, 0.1, 0.0])
        for mode in ("greedy", "sample", "filter"):
            ops.select(
                make(n, 97), torch.ones(n), torch.full((n,), 0.5), sampling,
                n_verify=4, mode=mode, out=tokens,
            )  # fmt: skip
        ops.kv_commit(k, v, prefix.expand(3), prefix, torch.ones(1, dtype=torch.int32))
    with pytest.raises(AssertionError, match="host sync"), NoHostSync():
        prefix.item()
