"""The CUDA C++ kernels as a backend; products of matrices are torch's (cuBLAS).

All but those products is row-invariant, bit for bit: what a row gets does not depend on the other
rows, on the tree, or on how a prompt was cut. Lengths are read on the device when a kernel runs, so
a step can be captured and replayed at any prefix length up to the kv_bound of the capture.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor

from ptd_engine.kernels import torch_ref
from ptd_engine.kernels.cuda_library import DTYPE_CODES, HEAD_DIMS, operators
from ptd_engine.kernels.ops import LinearWeight, SelectMode, StepScratch
from ptd_engine.kernels.processing import Processing
from ptd_engine.kernels.request import KernelRequest
from ptd_engine.kernels.torch_process import process, write_logprobs
from ptd_engine.kernels.torch_select import probabilities

_MODES: dict[SelectMode, int] = {"greedy": 0, "sample": 1, "filter": 2}
# Rows of a chain that are attended in one go: those before them count as prefix.
_CHAIN_ROWS = 64
# Tiles of the shortest split. The bits of the output depend on it.
_SPLIT_TILES = 4


def _native() -> ModuleType | None:
    try:
        return importlib.import_module("ptd_engine._cuda")
    except ImportError:
        return None


def probe(request: KernelRequest) -> str | None:
    """None where these kernels can serve, else the reason why not."""
    if request.device.type != "cuda":
        return f"runs on cuda, not on {request.device.type}"
    native = _native()
    if native is None:
        return "built without CUDA: install with nvcc and PTD_CUDA=1"
    if native.device_count() == 0:
        return "no CUDA device was found"
    capability = native.compute_capability(request.device.index or 0)
    if capability < 80:
        return f"needs compute capability 8.0, the device has {capability / 10:.1f}"
    if (reason := unsupported(request)) is not None:
        return reason
    needed = max(native.attention_shared(DTYPE_CODES[request.dtype], request.head_dim))
    there = native.shared_memory(request.device.index or 0)
    if needed > there:
        return (
            f"needs {needed} bytes of shared memory a block for {request.dtype} and head_dim "
            f"{request.head_dim}, the device has {there}"
        )
    return None


def unsupported(request: KernelRequest) -> str | None:
    """What of a request these kernels do not have, whatever the device; None if nothing."""
    if request.dtype not in DTYPE_CODES:
        return f"computes in float32, float16 and bfloat16, not in {request.dtype}"
    if request.weight_format != "float":
        return f"has no {request.weight_format} weights"
    if request.head_dim not in HEAD_DIMS:
        return f"head_dim must be one of {', '.join(map(str, HEAD_DIMS))}, not {request.head_dim}"
    return None


@dataclass(frozen=True)
class CudaOps:
    """The ops over one set of operators.

    Attributes:
        native: the module behind them.
        operators: see `cuda_library.operators`.
    """

    native: ModuleType
    operators: SimpleNamespace

    def tree_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        mask: Tensor | None,
        prefix_len: Tensor,
        kv_bound: int,
        scale: float,
        out: Tensor,
        shared: StepScratch | None = None,
    ) -> None:
        """See `ops.TreeAttention`."""
        self._attend(q, k_cache, v_cache, mask, prefix_len, 0, kv_bound, scale, out, shared)

    def causal_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        prefix_len: Tensor,
        kv_bound: int,
        scale: float,
        out: Tensor,
        shared: StepScratch | None = None,
    ) -> None:
        """See `ops.CausalAttention`."""
        shared = shared or StepScratch()
        for first in range(0, q.shape[0], _CHAIN_ROWS):
            rows = slice(first, first + _CHAIN_ROWS)
            self._attend(
                *(q[rows], k_cache, v_cache, None, prefix_len, first),
                *(kv_bound, scale, out[rows], shared),
            )

    def _attend(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        mask: Tensor | None,
        prefix_len: Tensor,
        prefix_offset: int,
        kv_bound: int,
        scale: float,
        out: Tensor,
        shared: StepScratch | None,
    ) -> None:
        rows, q_heads, head_dim = q.shape
        dtype = DTYPE_CODES.get(q.dtype, 0)
        nbytes = self.native.attention_workspace_bytes(
            dtype, rows, q_heads, head_dim, _SPLIT_TILES, kv_bound
        )
        workspace = (shared or StepScratch()).once(
            f"cuda_attention_{nbytes}",
            lambda: torch.empty(nbytes // 4, dtype=torch.float32, device=q.device),
        )
        self.operators.tree_attention(
            *(q, k_cache, v_cache, mask, prefix_len, prefix_offset),
            *(kv_bound, scale, _SPLIT_TILES, workspace, out),
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
        shared: StepScratch | None = None,
    ) -> None:
        """See `ops.RopeKVWrite`."""
        self.operators.rope_kv_write(
            *(qkv, q_norm, k_norm, eps, cos_sin, positions, prefix_len, k_cache, v_cache, q_out)
        )

    def select(
        self,
        logits: Tensor,
        temperature: Tensor,
        uniform: Tensor,
        sampling: Tensor,
        *,
        n_verify: int,
        mode: SelectMode,
        out: Tensor,
        vocab_limit: int | None = None,
        processing: Processing | None = None,
    ) -> None:
        """See `ops.Select`."""
        logits = logits[:, :vocab_limit]
        rows, code = logits.shape[0], _MODES[mode]
        n_verify = min(n_verify, rows)
        choose = self.operators.select
        if processing is None or n_verify == 0:
            choose(logits, temperature, uniform, sampling, code, n_verify, out)
            return
        raw = logits[:n_verify].float()
        head = raw if processing.logprob_ids is None else raw.clone()
        process(head, processing)
        choose(head, temperature, uniform, sampling, code, n_verify, out[:n_verify])
        if n_verify < rows:
            choose(logits[n_verify:], temperature, uniform, sampling, 0, 0, out[n_verify:])
        write_logprobs(raw, out[:n_verify, 0], processing)

    def head_select(
        self,
        hidden: Tensor,
        weight: LinearWeight,
        logits: Tensor,
        temperature: Tensor,
        uniform: Tensor,
        sampling: Tensor,
        *,
        n_verify: int,
        mode: SelectMode,
        out: Tensor,
        vocab_limit: int | None = None,
        processing: Processing | None = None,
    ) -> None:
        """See `ops.HeadSelect`."""
        torch_ref.linear(hidden, weight, logits)
        self.select(
            *(logits, temperature, uniform, sampling),
            n_verify=n_verify,
            mode=mode,
            out=out,
            vocab_limit=vocab_limit,
            processing=processing,
        )


def make_ops(native: ModuleType, namespace: str, key: str) -> Mapping[str, object]:
    """The ops by name; the arguments are those of `cuda_library.operators`."""
    found = operators(native, namespace, key)
    ops = CudaOps(native, found)
    return {
        "pack_linear": torch_ref.LinearPacker(packed=False),
        "linear": torch_ref.linear,
        "pack_embed": torch_ref.pack_embed,
        "embed": torch_ref.embed,
        "head_select": ops.head_select,
        "add_rms_norm": found.add_rms_norm,
        "rope_kv_write": ops.rope_kv_write,
        "tree_attention": ops.tree_attention,
        "causal_attention": ops.causal_attention,
        "silu_mul": found.silu_mul,
        "process": process,
        "select": ops.select,
        "probabilities": probabilities,
        "kv_commit": found.kv_commit,
    }


def load(request: KernelRequest) -> Mapping[str, object]:
    """The ops by name; they serve any dtype and head size that `probe` lets pass."""
    native = _native()
    assert native is not None  # the probe has asked
    return make_ops(native, "ptd_cuda", "CUDA")
