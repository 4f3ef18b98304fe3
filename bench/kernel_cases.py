"""What `kernels` times: each operation on a model's shapes, its inputs and what it moves."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from bench.kernel_types import Case, ModelShape, Prepared, Run
from ptd_engine.kernels import LinearWeight, Ops
from ptd_engine.testing.compare import tree_depths, tree_mask

# Inputs that a step reads once lie in as many copies as exceed the caches (the later copies at
# least), for a model's weights are never there when they are needed.
_COLD_BYTES = 64 * 2**20
_MOST_COPIES = 64


def make_cases(shape: ModelShape, rows: int, prefix: int, dtype: torch.dtype) -> list[Case]:
    """Every operation of a step of `rows` rows after `prefix` tokens."""
    linears = [
        ("qkv", shape.hidden, shape.qkv),
        ("gate_up", shape.hidden, 2 * shape.inner),
        ("down", shape.inner, shape.hidden),
    ]
    return [
        *(_linear(name, i, o, rows, dtype) for name, i, o in linears),
        _add_rms_norm(shape, rows, dtype),
        _rope_kv_write(shape, rows, prefix, dtype),
        _tree_attention(shape, rows, prefix, dtype),
        _silu_mul(shape, rows, dtype),
        _head_select(shape, rows, dtype),
        _kv_commit(shape, prefix, dtype),
    ]


def head_logits(
    shape: ModelShape, rows: int, timed: torch.dtype, ops: Ops, dtype: torch.dtype
) -> Tensor:
    """Logits of the head's case, computed in `dtype`: what ids of `head_select` are judged by."""
    weight, hidden = _head_inputs(shape, rows, timed)
    logits = torch.empty(rows, shape.vocab, dtype=dtype)
    ops.linear(hidden.to(dtype), ops.pack_linear(weight.to(dtype), None, head=True), logits)
    return logits


def _linear(name: str, inputs: int, outputs: int, rows: int, timed: torch.dtype) -> Case:
    weight_bytes = inputs * outputs * timed.itemsize

    def prepare(ops: Ops, dtype: torch.dtype) -> Prepared:
        source = _weight(outputs, inputs).to(timed).to(dtype)
        x = _make(rows, inputs, seed=2).to(timed).to(dtype)
        out = torch.empty(rows, outputs, dtype=dtype)
        count = _copies(weight_bytes) if dtype == timed else 1
        packed = [ops.pack_linear(source.clone(), None) for _ in range(count)]

        def by(weight: LinearWeight) -> Run:
            return lambda: ops.linear(x, weight, out)

        return Prepared([by(weight) for weight in packed], lambda: out)

    nbytes = weight_bytes + rows * (inputs + outputs) * timed.itemsize
    return Case("linear", f"{name} {inputs}x{outputs}", rows, nbytes, prepare)


def _add_rms_norm(shape: ModelShape, rows: int, timed: torch.dtype) -> Case:
    def prepare(ops: Ops, dtype: torch.dtype) -> Prepared:
        x, residual, weight = (
            _make(*size, seed=seed).to(timed).to(dtype)
            for seed, size in enumerate([(rows, shape.hidden)] * 2 + [(shape.hidden,)])
        )
        out = torch.empty_like(x)
        # It adds in place: the first run is the one to check.
        return Prepared([lambda: ops.add_rms_norm(x, residual, weight, 1e-5, out)], lambda: out)

    nbytes = (4 * rows + 1) * shape.hidden * timed.itemsize
    return Case("add_rms_norm", f"{shape.hidden}", rows, nbytes, prepare)


def _positions(parents: Sequence[int], prefix: int) -> Tensor:
    return torch.tensor([prefix + d for d in tree_depths(parents)], dtype=torch.int32)


def _parents(rows: int) -> list[int]:
    draw = random.Random(rows)
    return [-1, *(draw.randrange(row) for row in range(1, rows))]


def _rope_kv_write(shape: ModelShape, rows: int, prefix: int, timed: torch.dtype) -> Case:
    heads, size = shape.q_heads, shape.head_dim

    def prepare(ops: Ops, dtype: torch.dtype) -> Prepared:
        qkv = _make(rows, shape.qkv, seed=1).to(timed).to(dtype)
        angles = _make(prefix + rows, size // 2, seed=2)
        table = torch.cat([angles.cos(), angles.sin()], dim=1).contiguous()
        positions, length = _positions(_parents(rows), prefix), torch.tensor([prefix]).int()
        k, v = (torch.zeros(shape.kv_heads, prefix + rows, size, dtype=dtype) for _ in "kv")
        q_out = torch.empty(rows, heads, size, dtype=dtype)

        def call() -> None:
            ops.rope_kv_write(qkv, None, None, 1e-5, table, positions, length, k, v, q_out)

        def written() -> Tensor:
            parts = (q_out, k[:, prefix:], v[:, prefix:])
            return torch.cat([part.flatten() for part in parts])

        return Prepared([call], written)

    nbytes = 2 * rows * shape.qkv * timed.itemsize + rows * size * 4
    return Case("rope_kv_write", f"{heads}+{shape.kv_heads}x{size}", rows, nbytes, prepare)


def _tree_attention(shape: ModelShape, rows: int, prefix: int, timed: torch.dtype) -> Case:
    keys = prefix + rows
    cache_bytes = 2 * shape.kv_heads * keys * shape.head_dim * timed.itemsize

    def prepare(ops: Ops, dtype: torch.dtype) -> Prepared:
        q = _make(rows, shape.q_heads, shape.head_dim, seed=1).to(timed).to(dtype)
        mask, length = tree_mask(_parents(rows)), torch.tensor([prefix]).int()
        out = torch.empty(rows, shape.q_heads * shape.head_dim, dtype=dtype)
        k, v = (
            _make(shape.kv_heads, keys, shape.head_dim, seed=s).to(timed).to(dtype) for s in (2, 3)
        )
        count = _copies(cache_bytes) if dtype == timed else 1
        scale = shape.head_dim**-0.5

        def on(k: Tensor, v: Tensor) -> Run:
            return lambda: ops.tree_attention(q, k, v, mask, length, keys, scale, out)

        return Prepared([on(k.clone(), v.clone()) for _ in range(count)], lambda: out)

    q_bytes = 2 * rows * shape.q_heads * shape.head_dim * timed.itemsize
    detail = f"{shape.q_heads}/{shape.kv_heads}x{shape.head_dim}, {prefix} before"
    return Case("tree_attention", detail, rows, cache_bytes + q_bytes, prepare)


def _silu_mul(shape: ModelShape, rows: int, timed: torch.dtype) -> Case:
    def prepare(ops: Ops, dtype: torch.dtype) -> Prepared:
        gate_up = _make(rows, 2 * shape.inner, seed=1).to(timed).to(dtype)
        out = torch.empty(rows, shape.inner, dtype=dtype)
        return Prepared([lambda: ops.silu_mul(gate_up, out)], lambda: out)

    nbytes = 3 * rows * shape.inner * timed.itemsize
    return Case("silu_mul", f"{shape.inner}", rows, nbytes, prepare)


def _head_inputs(shape: ModelShape, rows: int, timed: torch.dtype) -> tuple[Tensor, Tensor]:
    return _weight(shape.vocab, shape.hidden).to(timed), _make(rows, shape.hidden, seed=2).to(timed)


def _head_select(shape: ModelShape, rows: int, timed: torch.dtype) -> Case:
    def prepare(ops: Ops, dtype: torch.dtype) -> Prepared:
        weight, hidden = (t.to(dtype) for t in _head_inputs(shape, rows, timed))
        packed = ops.pack_linear(weight, None, head=True)
        logits = torch.empty(rows, shape.vocab, dtype=ops.logits_dtype or dtype)
        zeros, sampling = torch.zeros(rows), torch.zeros(4)
        out = torch.empty(rows, 1, dtype=torch.int32)

        def call() -> None:
            ops.head_select(
                *(hidden, packed, logits, zeros, zeros, sampling),
                n_verify=rows,
                mode="greedy",
                out=out,
            )

        return Prepared([call], lambda: out)

    nbytes = shape.vocab * shape.hidden * timed.itemsize
    detail = f"{shape.hidden}x{shape.vocab}"
    return Case("head_select", detail, rows, nbytes, prepare, chooses=True)


def _kv_commit(shape: ModelShape, prefix: int, timed: torch.dtype) -> Case:
    moved, size = 4, (shape.layers, shape.kv_heads, prefix + 16, shape.head_dim)

    def prepare(ops: Ops, dtype: torch.dtype) -> Prepared:
        k, v = (_make(*size, seed=s).to(timed).to(dtype) for s in (1, 2))
        source = [prefix + 2 * i + 1 for i in range(moved)]
        sources = torch.tensor(source, dtype=torch.int32)
        length, count = (torch.tensor([n], dtype=torch.int32) for n in (prefix + moved, moved))
        return Prepared(
            [lambda: ops.kv_commit(k, v, sources, length, count)],
            lambda: torch.cat([k.flatten(), v.flatten()]),
        )

    nbytes = 4 * moved * shape.layers * shape.kv_heads * shape.head_dim * timed.itemsize
    return Case("kv_commit", f"{moved} rows, {shape.layers} layers", moved, nbytes, prepare)


def _make(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@lru_cache(maxsize=1)  # the largest take a second to draw; nobody writes to it
def _weight(outputs: int, inputs: int) -> Tensor:
    return _make(outputs, inputs, seed=1, scale=inputs**-0.5)


def _copies(nbytes: int) -> int:
    return max(1, min(_MOST_COPIES, -(-_COLD_BYTES // nbytes)))
