"""The operations beside attention and products, of every GPU backend, against plain torch there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpu.device import BF16, DEVICE, FP16, FP32, get_ops, int32, make, sizes
from torch import Tensor

from ptd_engine.kernels import torch_ref
from ptd_engine.testing.compare import within_reference_noise

dtypes = pytest.mark.parametrize("dtype", sizes([BF16, FP16, FP32], [BF16]), ids=str)
NAN = float("nan")


@dtypes
@pytest.mark.parametrize("hidden", sizes([4096, 3584, 576], [48]))
@pytest.mark.parametrize("added", [True, False])
def test_add_rms_norm(backend: str, dtype: torch.dtype, hidden: int, added: bool) -> None:
    ops, n = get_ops(backend, dtype, 64), 5
    x = make(n, hidden, dtype=dtype) if added else None
    residual, weight = make(n, hidden, dtype=dtype, seed=1), make(hidden, dtype=dtype, seed=2)
    residual[3] = NAN
    mine, out, theirs = residual.clone(), torch.empty_like(residual), torch.empty_like(residual)
    ops.add_rms_norm(x, mine, weight, 1e-5, out)
    torch_ref.add_rms_norm(x, residual, weight, 1e-5, theirs)
    exact = torch.empty(n, hidden, device=DEVICE)
    torch_ref.add_rms_norm(None, residual.float(), weight.float(), 1e-5, exact)
    whole = [0, 1, 2, 4]  # a row of NaN stays alone
    assert torch.equal(mine[whole], residual[whole]) and out[3].isnan().all()
    assert within_reference_noise(out[whole], theirs[whole], exact[whole])


@dtypes
@pytest.mark.parametrize("inner", sizes([14336, 1536], [40]))
def test_silu_mul(backend: str, dtype: torch.dtype, inner: int) -> None:
    gate_up = make(3, 2 * inner, dtype=dtype)
    out, theirs = (torch.empty(3, inner, dtype=dtype, device=DEVICE) for _ in range(2))
    get_ops(backend, dtype, 64).silu_mul(gate_up, out)
    torch_ref.silu_mul(gate_up, theirs)
    exact = torch.empty(3, inner, device=DEVICE)
    torch_ref.silu_mul(gate_up.float(), exact)
    assert within_reference_noise(out, theirs, exact)


@dtypes
@pytest.mark.parametrize(
    ("heads", "dim"), sizes([((32, 8), 128), ((28, 4), 128), ((3, 1), 80)], [((2, 1), 64)])
)
@pytest.mark.parametrize("normed", [True, False])
def test_rope_kv_write(
    backend: str, dtype: torch.dtype, heads: tuple[int, int], dim: int, normed: bool
) -> None:
    n, (q_heads, kv_heads) = 3, heads
    qkv = make(n, (q_heads + 2 * kv_heads) * dim, dtype=dtype)
    norms = [make(dim, dtype=dtype, seed=seed) if normed else None for seed in (1, 2)]
    angles = make(50, dim // 2, seed=3)
    table = torch.cat([angles.cos(), angles.sin()], -1)

    def run(op: Any, to: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        # The caches of a layer are views into those of all.
        k, v = torch.full((2, kv_heads, 3, 20, dim), -7.0, dtype=to, device=DEVICE)[:, :, 1]
        q = torch.zeros(n, q_heads, dim, dtype=to, device=DEVICE)
        cast = [None if x is None else x.to(to) for x in (qkv, *norms)]
        op(*cast, 1e-6, table, int32(9, 0, 44), int32(11), k, v, q)
        return q, k, v

    got = run(get_ops(backend, dtype, dim).rope_kv_write, dtype)
    same, wide = run(torch_ref.rope_kv_write, dtype), run(torch_ref.rope_kv_write, FP32)
    for mine, theirs, exact in zip(got, same, wide, strict=True):
        assert within_reference_noise(mine, theirs, exact)
    assert torch.equal(got[2], same[2]) and torch.equal(got[1] == -7, same[1] == -7)


@dtypes
@pytest.mark.parametrize("path", [[], [12], [12, 13, 17], [13, 14, 15, 16, 19]], ids=str)
def test_kv_commit(backend: str, dtype: torch.dtype, path: list[int]) -> None:
    before, layers, heads = 12, *sizes([32, 8], [2, 1])
    mine = make(2, layers, heads, 20, 64, dtype=dtype)
    theirs = mine.clone()
    after = before + len(path)
    sources = int32(*[*path, *range(after, after + 6)][:6])
    get_ops(backend, dtype, 64).kv_commit(*mine, sources, int32(after), int32(len(path)))
    torch_ref.kv_commit(*theirs, sources, int32(after), int32(len(path)))
    assert torch.equal(mine, theirs)


@dtypes
@pytest.mark.parametrize("vocab", sizes([32000, 128256, 151936], [700]))
@pytest.mark.parametrize("mode", ["greedy", "sample", "filter"])
def test_select(backend: str, dtype: torch.dtype, vocab: int, mode: Any) -> None:
    n, limit = 6, vocab - 10
    logits = make(n, vocab, dtype=dtype) * 4
    logits[:, limit:] = NAN
    logits[3, 7] = NAN
    temperature = torch.tensor([0.7, 0.0, 1.3, 1.0, 0.5, 1.0], device=DEVICE)
    uniform = torch.tensor([0.1, 0.9, 0.42, 0.3, 0.999, 0.5], device=DEVICE)
    sampling = torch.tensor([50.0, 0.9, 0.001, 0.0], device=DEVICE)

    def run(op: Any) -> Tensor:
        out = torch.full((n, 5), 7777, dtype=torch.int32, device=DEVICE)
        heat = logits, temperature, uniform, sampling
        op(*heat, n_verify=5, mode=mode, out=out, vocab_limit=limit)
        return out

    mine, theirs = run(get_ops(backend, dtype, 64).select), run(torch_ref.select)
    assert torch.equal(mine[:, 0], theirs[:, 0])
    whole = torch.arange(n, device=DEVICE) != 3  # nothing is said of what a broken row lists
    listed = [logits.float().gather(1, x[:, 1:].clamp(min=0).long())[whole] for x in (mine, theirs)]
    assert torch.equal(*listed)
