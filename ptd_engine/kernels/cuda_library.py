"""The CUDA C++ kernels (csrc/cuda) as torch operators: tensors become addresses.

Operators of torch are what graph capture, `torch.compile` and a dispatch mode that records a step
can see. They are defined and registered when they are first asked for, in Python over the binding:
2 us a call where `torch.library.custom_op` takes 15.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ptd_engine.errors import ConfigError

HEAD_DIMS = (64, 80, 96, 128, 256)  # of attention
DTYPE_CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  # ptd::cuda::DType

_MOST_ROTATED = 256  # head_dim
_OTHER_BACKENDS = "kernels='triton' and 'torch' have more."

# What an operator writes is marked, (a!) and so on; none returns anything.
_SCHEMAS = (
    "tree_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor? mask, Tensor prefix_len, "
    "int prefix_offset, int kv_bound, float scale, int split_tiles, Tensor(a!) workspace, "
    "Tensor(b!) out) -> ()",
    "rope_kv_write(Tensor qkv, Tensor? q_norm, Tensor? k_norm, float eps, Tensor cos_sin, "
    "Tensor positions, Tensor prefix_len, Tensor(a!) k_cache, Tensor(b!) v_cache, "
    "Tensor(c!) q_out) -> ()",
    "kv_commit(Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor commit_src, Tensor prefix_len, "
    "Tensor n_commit) -> ()",
    "select(Tensor logits, Tensor temperature, Tensor uniform, Tensor sampling, int mode, "
    "int n_verify, Tensor(a!) out) -> ()",
    "add_rms_norm(Tensor? x, Tensor(a!) residual, Tensor weight, float eps, Tensor(b!) out) -> ()",
    "silu_mul(Tensor gate_up, Tensor(a!) out) -> ()",
)


@dataclass(frozen=True)
class _Launcher:
    """The implementations: what each operator does with its tensors."""

    native: Any  # ptd_engine._cuda, or a build of it for the CPU
    on_gpu: bool

    def _device(self, tensor: Tensor) -> AbstractContextManager[object]:
        return torch.cuda.device(tensor.device) if self.on_gpu else nullcontext()

    def _stream(self, tensor: Tensor) -> int:
        return torch.cuda.current_stream(tensor.device).cuda_stream if self.on_gpu else 0

    def tree_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        mask: Tensor | None,
        prefix_len: Tensor,
        prefix_offset: int,
        kv_bound: int,
        scale: float,
        split_tiles: int,
        workspace: Tensor,
        out: Tensor,
    ) -> None:
        rows, q_heads, head_dim = q.shape
        kv_heads, capacity, _ = k_cache.shape
        _contiguous("tree_attention", q=q, mask=mask, workspace=workspace, out=out)
        _alike("tree_attention", q=q, k_cache=k_cache, v_cache=v_cache, out=out)
        _integers("tree_attention", prefix_len=prefix_len)
        _rows_of_cache("tree_attention", k_cache, v_cache)
        if head_dim not in HEAD_DIMS:
            raise ConfigError.for_field(
                "tree_attention: head_dim", head_dim, f"one of {HEAD_DIMS}", _OTHER_BACKENDS
            )
        if q_heads % kv_heads != 0:
            raise ConfigError.for_field(
                "tree_attention: heads", (q_heads, kv_heads), "query heads in groups of equal size"
            )
        if mask is not None:
            if rows > self.native.MAX_TREE_ROWS:
                most = self.native.MAX_TREE_ROWS
                raise ConfigError.for_field(
                    "rows of a tree", rows, f"at most {most} with kernels='cuda'"
                )
            _shaped("tree_attention", "mask", mask, (rows, -(-rows // 64)), torch.int64)
        _shaped("tree_attention", "k_cache", k_cache, (kv_heads, capacity, head_dim), q.dtype)
        _shaped("tree_attention", "out", out, (rows, q_heads * head_dim), q.dtype)
        if not prefix_offset + rows <= kv_bound <= capacity:
            allowed = f"{prefix_offset + rows} to {capacity}, the capacity of the cache"
            raise ConfigError.for_field("tree_attention: kv_bound", kv_bound, allowed)
        with self._device(q):
            self.native.tree_attention(
                DTYPE_CODES[q.dtype],
                rows,
                q_heads,
                k_cache.shape[0],
                head_dim,
                split_tiles,
                kv_bound,
                k_cache.stride(0),
                k_cache.stride(1),
                scale,
                q.data_ptr(),
                k_cache.data_ptr(),
                v_cache.data_ptr(),
                _address(mask),
                prefix_len.data_ptr(),
                prefix_offset,
                workspace.data_ptr(),
                out.data_ptr(),
                self._stream(q),
            )

    def rope_kv_write(
        self,
        qkv: Tensor,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
        cos_sin: Tensor,
        positions: Tensor,
        prefix_len: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        q_out: Tensor,
    ) -> None:
        rows, q_heads, head_dim = q_out.shape
        _contiguous(
            "rope_kv_write", qkv=qkv, q_norm=q_norm, k_norm=k_norm, cos_sin=cos_sin, q_out=q_out
        )
        _alike("rope_kv_write", qkv=qkv, k_cache=k_cache, v_cache=v_cache, q_out=q_out)
        _integers("rope_kv_write", positions=positions, prefix_len=prefix_len)
        _rows_of_cache("rope_kv_write", k_cache, v_cache)
        kv_heads, capacity, _ = k_cache.shape
        if head_dim % 2 != 0 or head_dim > _MOST_ROTATED:
            raise ConfigError.for_field(
                "rope_kv_write: head_dim", head_dim, f"an even number up to {_MOST_ROTATED}"
            )
        width = (q_heads + 2 * kv_heads) * head_dim
        _shaped("rope_kv_write", "qkv", qkv, (rows, width), qkv.dtype)
        _shaped("rope_kv_write", "k_cache", k_cache, (kv_heads, capacity, head_dim), qkv.dtype)
        _shaped("rope_kv_write", "cos_sin", cos_sin, (len(cos_sin), head_dim), torch.float32)
        _shaped("rope_kv_write", "positions", positions, (rows,), torch.int32)
        with self._device(qkv):
            self.native.rope_kv_write(
                DTYPE_CODES[qkv.dtype],
                rows,
                q_heads,
                k_cache.shape[0],
                head_dim,
                eps,
                k_cache.stride(0),
                k_cache.stride(1),
                qkv.data_ptr(),
                _address(q_norm),
                _address(k_norm),
                cos_sin.data_ptr(),
                positions.data_ptr(),
                prefix_len.data_ptr(),
                k_cache.data_ptr(),
                v_cache.data_ptr(),
                q_out.data_ptr(),
                self._stream(qkv),
            )

    def kv_commit(
        self,
        k_cache: Tensor,
        v_cache: Tensor,
        commit_src: Tensor,
        prefix_len: Tensor,
        n_commit: Tensor,
    ) -> None:
        layers, kv_heads, _, head_dim = k_cache.shape
        _alike("kv_commit", k_cache=k_cache, v_cache=v_cache)
        _integers("kv_commit", commit_src=commit_src, prefix_len=prefix_len, n_commit=n_commit)
        _rows_of_cache("kv_commit", k_cache, v_cache)
        with self._device(k_cache):
            self.native.kv_commit(
                k_cache.element_size(),
                layers,
                kv_heads,
                head_dim,
                commit_src.shape[0],
                *k_cache.stride()[:3],
                k_cache.data_ptr(),
                v_cache.data_ptr(),
                commit_src.data_ptr(),
                prefix_len.data_ptr(),
                n_commit.data_ptr(),
                self._stream(k_cache),
            )

    def select(
        self,
        logits: Tensor,
        temperature: Tensor,
        uniform: Tensor,
        sampling: Tensor,
        mode: int,
        n_verify: int,
        out: Tensor,
    ) -> None:
        rows, vocab = logits.shape
        _contiguous("select", temperature=temperature, uniform=uniform, sampling=sampling)
        _integers("select", out=out)
        if not 1 <= vocab <= self.native.MAX_VOCAB:
            raise ConfigError.for_field(
                "vocab_limit", vocab, f"1 to {self.native.MAX_VOCAB}", _OTHER_BACKENDS
            )
        most = min(vocab, self.native.MAX_SUCCESSORS)
        if not 1 <= out.shape[1] <= 1 + most:
            raise ConfigError.for_field(
                "successors", out.shape[1] - 1, f"0 to {most}", _OTHER_BACKENDS
            )
        for name, number in (("temperature", temperature), ("uniform", uniform)):
            _shaped("select", name, number[:n_verify], (n_verify,), torch.float32)
        _shaped("select", "sampling", sampling, (4,), torch.float32)
        if logits.dtype not in DTYPE_CODES:
            raise ConfigError.for_field("select: logits", logits.dtype, "a floating dtype")
        if logits.stride(1) != 1 or out.stride(1) != 1:
            raise ConfigError.for_field(
                "select: strides", (logits.stride(), out.stride()), "rows of adjacent elements"
            )
        with self._device(logits):
            self.native.select(
                DTYPE_CODES[logits.dtype],
                mode,
                rows,
                vocab,
                n_verify,
                out.shape[1] - 1,
                logits.stride(0),
                out.stride(0),
                logits.data_ptr(),
                temperature.data_ptr(),
                uniform.data_ptr(),
                sampling.data_ptr(),
                out.data_ptr(),
                self._stream(logits),
            )

    def add_rms_norm(
        self, x: Tensor | None, residual: Tensor, weight: Tensor, eps: float, out: Tensor
    ) -> None:
        rows, hidden = residual.shape
        _contiguous("add_rms_norm", x=x, residual=residual, weight=weight, out=out)
        _alike("add_rms_norm", residual=residual, weight=weight, out=out)
        _shaped("add_rms_norm", "weight", weight, (hidden,), residual.dtype)
        for name, other in (("x", residual if x is None else x), ("out", out)):
            _shaped("add_rms_norm", name, other, (rows, hidden), residual.dtype)
        with self._device(residual):
            self.native.add_rms_norm(
                DTYPE_CODES[residual.dtype],
                rows,
                hidden,
                eps,
                _address(x),
                residual.data_ptr(),
                weight.data_ptr(),
                out.data_ptr(),
                self._stream(residual),
            )

    def silu_mul(self, gate_up: Tensor, out: Tensor) -> None:
        rows, inner = out.shape
        _contiguous("silu_mul", gate_up=gate_up, out=out)
        _alike("silu_mul", gate_up=gate_up, out=out)
        _shaped("silu_mul", "gate_up", gate_up, (rows, 2 * inner), out.dtype)
        with self._device(out):
            self.native.silu_mul(
                DTYPE_CODES[out.dtype],
                rows,
                inner,
                gate_up.data_ptr(),
                out.data_ptr(),
                self._stream(out),
            )


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _contiguous(op: str, **tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and not tensor.is_contiguous():
            raise ConfigError.for_field(f"{op}: {name}", tensor.stride(), "a contiguous tensor")


def _alike(op: str, **tensors: Tensor) -> None:
    """All of one dtype that the kernels know."""
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    if len(set(dtypes.values())) > 1 or next(iter(dtypes.values())) not in DTYPE_CODES:
        fp8 = torch.float8_e4m3fn in dtypes.values()
        raise ConfigError.for_field(
            *(f"{op}: dtypes", dtypes, "one floating dtype for all"),
            "Caches in float8_e4m3fn are read by kernels='triton'." if fp8 else "",
        )


def _shaped(op: str, name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tensor.shape != shape or tensor.dtype != dtype:
        held = (tuple(tensor.shape), tensor.dtype)
        raise ConfigError.for_field(f"{op}: {name}", held, f"{shape} of {dtype}")


def _integers(op: str, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype != torch.int32:
            raise ConfigError.for_field(f"{op}: {name}", tensor.dtype, "an int32 tensor")


def _rows_of_cache(op: str, k_cache: Tensor, v_cache: Tensor) -> None:
    """Rows are read in pieces of 16 bytes; keys and values lie alike."""
    strides, size = k_cache.stride(), k_cache.element_size()
    whole = all(stride * size % 16 == 0 for stride in strides[:-1])
    if strides != v_cache.stride() or strides[-1] != 1 or not whole:
        raise ConfigError.for_field(
            f"{op}: strides of the cache",
            (strides, v_cache.stride()),
            "equal ones for keys and values, rows of adjacent elements at multiples of 16 bytes",
        )


@cache
def operators(native: ModuleType, namespace: str, key: str) -> SimpleNamespace:
    """The operators by name, torch.ops.<namespace>.<name>.

    Args:
        native: the module `ptd_engine._cuda`, or another build of it.
        namespace: where torch gets them; a namespace is filled once in a process.
        key: the dispatch key of the tensors that `native` works on, "CUDA" or "CPU".
    """
    library = torch.library.Library(namespace, "DEF")
    launcher = _Launcher(native, key == "CUDA")
    found = SimpleNamespace(library=library)  # the operators live as long as it does
    for schema in _SCHEMAS:
        name = library.define(schema)
        implementation: Callable[..., None] = getattr(launcher, name)
        library.impl(name, implementation, key)
        library.impl(name, _shapes_only, "Meta")
        setattr(found, name, getattr(getattr(torch.ops, namespace), name).default)
    return found


def _shapes_only(*arguments: object) -> None:
    """Of an operator that only writes into its arguments nothing is left without their data."""
