"""The native CPU kernels (csrc/cpu) as ops: tensors become addresses.

Every op is row-invariant, bit for bit: what a row gets does not depend on the other rows, on the
tree or on the number of threads. Lengths are read through pointers when a kernel runs, so a forward
pass can be recorded once and replayed at any prefix length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ptd_engine import _core
from ptd_engine.errors import ConfigError
from ptd_engine.kernels.cpu_weights import WeightStore
from ptd_engine.kernels.ops import LinearWeight, SelectMode, StepScratch, WeightFormat
from ptd_engine.kernels.processing import Processing
from ptd_engine.kernels.request import KernelRequest
from ptd_engine.kernels.torch_process import process, write_logprobs
from ptd_engine.kernels.torch_select import probabilities

_DTYPES = (torch.float32, torch.bfloat16)
_MAX_HEAD_DIM = 256
_MAX_QUERY_GROUP = 16  # kTileHeads of csrc/cpu/attention_layout.h
VARIANTS = tuple(_core.cpu_isas())


def probe(request: KernelRequest) -> str | None:
    """None where these kernels can serve, else the reason why not."""
    if request.device.type != "cpu":
        return f"runs on cpu, not on {request.device.type}"
    if request.dtype not in _DTYPES:
        return f"computes in float32 and bfloat16, not in {request.dtype}"
    if request.weight_format != "float" and request.dtype != torch.bfloat16:
        return f"{request.weight_format} weights go with bfloat16, not with {request.dtype}"
    if request.head_dim % 16 != 0 or request.head_dim > _MAX_HEAD_DIM:
        return f"head_dim must be a multiple of 16 up to {_MAX_HEAD_DIM}, not {request.head_dim}"
    if request.query_group > _MAX_QUERY_GROUP and request.kv_heads > 1:
        return (
            f"attends with up to {_MAX_QUERY_GROUP} query heads for each of several key/value "
            f"heads, not {request.query_group}"
        )
    reason = _core.cpu_isas()[request.variant] if request.variant else ""
    return reason or None


def auto_probe(request: KernelRequest) -> str | None:
    """The reason why `auto` passes these kernels over although they could serve."""
    if request.weight_format == "float" and _core.cpu_best_isa() == "scalar":
        return "this processor has only the scalar kernels, which are slower than torch"
    return None


@dataclass(frozen=True)
class _CpuOps:
    """The ops of one model: its dtype, weight format and team of threads."""

    executor: _core.CpuExecutor
    dtype: torch.dtype
    weight_format: WeightFormat
    store: WeightStore

    @property
    def _bf16(self) -> bool:
        return self.dtype == torch.bfloat16

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None, *, head: bool = False
    ) -> LinearWeight:
        """See `ops.PackLinear`. With int4 weights the output matrix is int8."""
        return self._pack(weight, bias, self._stored(head))

    def packed_nbytes(
        self,
        out_features: int,
        in_features: int,
        *,
        bias: bool = False,
        head: bool = False,
        embed: bool = False,
    ) -> int:
        """See `ops.PackedNbytes`."""
        layout = self._layout("float" if embed else self._stored(head))
        return _core.CpuWeight.nbytes(layout, out_features, in_features, bias)

    def _stored(self, head: bool) -> WeightFormat:
        return "int8" if head and self.weight_format == "int4" else self.weight_format

    def _layout(self, stored: WeightFormat) -> str:
        return str(self.dtype).removeprefix("torch.") if stored == "float" else stored

    def pack_embed(self, weight: Tensor, *, tied: bool) -> LinearWeight:
        """See `ops.PackEmbed`. Tied, it is the output matrix; else it is not quantised."""
        return self.pack_linear(weight, None, head=True) if tied else self._pack(weight, None)

    def _pack(
        self, weight: Tensor, bias: Tensor | None, stored: WeightFormat = "float"
    ) -> LinearWeight:
        if weight.dtype != self.dtype or weight.device.type != "cpu":
            raise ConfigError.for_field(
                "kernels",
                f"CPU kernels for {self.dtype}",
                f"kernels made for the model's own dtype, here {weight.dtype} on {weight.device}",
                "Pass the same dtype and device to `select_ops` and to the model.",
            )
        return self.store.pack(weight, bias, self._layout(stored))

    def linear(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:
        """See `ops.Linear`; `out` may be float32 whatever the dtype."""
        self.executor.linear(
            self._bf16,
            x.shape[0],
            x.data_ptr(),
            weight.handle,
            out.data_ptr(),
            out.dtype == torch.float32,
        )

    def embed(self, token_ids: Tensor, weight: LinearWeight, out: Tensor) -> None:
        """See `ops.Embed`."""
        self.executor.embed(
            self._bf16, out.shape[0], token_ids.data_ptr(), weight.handle, out.data_ptr()
        )

    def add_rms_norm(
        self, x: Tensor | None, residual: Tensor, weight: Tensor, eps: float, out: Tensor
    ) -> None:
        """See `ops.AddRMSNorm`."""
        rows, hidden = residual.shape
        self.executor.add_rms_norm(
            self._bf16,
            rows,
            hidden,
            _address(x),
            residual.data_ptr(),
            weight.data_ptr(),
            eps,
            out.data_ptr(),
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
        rows, q_heads, head_dim = q_out.shape
        self.executor.rope_kv_write(
            self._bf16,
            rows,
            q_heads,
            k_cache.shape[0],
            head_dim,
            qkv.data_ptr(),
            _address(q_norm),
            _address(k_norm),
            eps,
            cos_sin.data_ptr(),
            positions.data_ptr(),
            prefix_len.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            k_cache.stride(0),
            q_out.data_ptr(),
        )

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
        rows, q_heads, head_dim = q.shape
        self.executor.attention(
            self._bf16,
            rows,
            q_heads,
            k_cache.shape[0],
            head_dim,
            q.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            k_cache.stride(0),
            _address(mask),
            prefix_len.data_ptr(),
            scale,
            kv_bound,
            out.data_ptr(),
        )

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
        self.tree_attention(q, k_cache, v_cache, None, prefix_len, kv_bound, scale, out, shared)

    def silu_mul(self, gate_up: Tensor, out: Tensor) -> None:
        """See `ops.SiluMul`."""
        rows, inner = out.shape
        self.executor.silu_mul(self._bf16, rows, inner, gate_up.data_ptr(), out.data_ptr())

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
        """See `ops.HeadSelect`; logits float32."""
        rows, successors = hidden.shape[0], out.shape[1] - 1
        n_verify = min(n_verify, rows)
        formed = 0 if mode == "greedy" and processing is None else n_verify
        limit = logits.shape[1] if vocab_limit is None else vocab_limit
        self.executor.head(
            self._bf16,
            rows,
            hidden.data_ptr(),
            weight.handle,
            rows if successors else formed,
            logits.data_ptr(),
            limit,
            out.data_ptr(),
            out.stride(0),
        )
        self._choose(
            logits[:, :limit], temperature, uniform, sampling, n_verify, mode, out, processing
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
        wide = logits.float()[:, :vocab_limit]
        _argmax(wide, out)
        n_verify = min(n_verify, logits.shape[0])
        self._choose(wide, temperature, uniform, sampling, n_verify, mode, out, processing)

    def _choose(
        self,
        logits: Tensor,
        temperature: Tensor,
        uniform: Tensor,
        sampling: Tensor,
        n_verify: int,
        mode: SelectMode,
        out: Tensor,
        processing: Processing | None,
    ) -> None:
        """All of `select` but the argmax, which out[:, 0] holds; logits [N, limit] fp32."""
        drawn = 0 if mode == "greedy" else n_verify
        if processing is None:
            self._draw(logits, temperature, uniform, sampling, drawn, mode, out)
            return
        head = logits[:n_verify]
        raw = head if processing.logprob_ids is None else head.clone()
        process(head, processing)
        _argmax(head, out[:n_verify])
        self._draw(logits, temperature, uniform, sampling, drawn, mode, out)
        write_logprobs(raw, out[:n_verify, 0], processing, largest=self._largest)

    def _largest(self, logits: Tensor, out: Tensor) -> None:
        rows = logits.shape[0]
        unused = torch.zeros(max(rows, 4))  # every row is an argmax row, and already told
        self._run_select(logits, unused, unused, unused, False, rows, out)

    def _draw(
        self,
        logits: Tensor,
        temperature: Tensor,
        uniform: Tensor,
        sampling: Tensor,
        drawn: int,
        mode: SelectMode,
        out: Tensor,
    ) -> None:
        """Draw the first `drawn` rows, and list the successors of all rows if `out` asks for it."""
        successors = out.shape[1] - 1
        if drawn == 0 and successors == 0:
            return
        rows = logits.shape[0] if successors else drawn
        if drawn < rows:  # the rows behind are argmax rows whatever their temperature says
            temperature = temperature[:rows].clone()
            temperature[drawn:] = 0
        self._run_select(logits, temperature, uniform, sampling, mode == "filter", rows, out)

    def _run_select(
        self,
        logits: Tensor,
        temperature: Tensor,
        uniform: Tensor,
        sampling: Tensor,
        filters: bool,
        rows: int,
        out: Tensor,
    ) -> None:
        self.executor.select(
            rows,
            logits.shape[1],
            logits.data_ptr(),
            logits.stride(0),
            temperature.data_ptr(),
            uniform.data_ptr(),
            sampling.data_ptr(),
            filters,
            out.shape[1] - 1,
            out.data_ptr(),
            out.stride(0),
        )

    def kv_commit(
        self,
        k_cache: Tensor,
        v_cache: Tensor,
        commit_src: Tensor,
        prefix_len: Tensor,
        n_commit: Tensor,
    ) -> None:
        """See `ops.KVCommit`."""
        layers, kv_heads, capacity, head_dim = k_cache.shape
        self.executor.kv_commit(
            k_cache.dtype == torch.bfloat16,
            layers,
            kv_heads,
            head_dim,
            capacity,
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            commit_src.data_ptr(),
            prefix_len.data_ptr(),
            int(n_commit),
        )

    def record(self, call: Callable[[], None]) -> Callable[[], None]:
        """See `ops.Record`."""
        executor = self.executor
        program = executor.record(call)
        return lambda: executor.run(program)


def _argmax(logits: Tensor, out: Tensor) -> None:
    """The rows' largest logits to out[:, 0], ties to the lowest id; -1 where it is not finite."""
    peak, token = logits.max(dim=-1)
    out[:, 0] = torch.where(torch.isfinite(peak), token, -1)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def load(request: KernelRequest) -> Mapping[str, object]:
    """The ops by name, over a new team of threads."""
    threads = torch.get_num_threads() if request.num_threads is None else request.num_threads
    try:
        executor = _core.CpuExecutor(request.variant or "auto", threads)
    except (ValueError, RuntimeError) as error:  # more threads than there may be
        raise ConfigError(str(error)) from error
    ops = _CpuOps(executor, request.dtype, request.weight_format, WeightStore())
    return {
        "pack_linear": ops.pack_linear,
        "linear": ops.linear,
        "pack_embed": ops.pack_embed,
        "embed": ops.embed,
        "add_rms_norm": ops.add_rms_norm,
        "rope_kv_write": ops.rope_kv_write,
        "tree_attention": ops.tree_attention,
        "causal_attention": ops.causal_attention,
        "silu_mul": ops.silu_mul,
        "head_select": ops.head_select,
        "process": process,
        "select": ops.select,
        "probabilities": probabilities,
        "kv_commit": ops.kv_commit,
        "record": ops.record,
        "shares_embedding": True,
        "logits_dtype": torch.float32,
        "packed_nbytes": ops.packed_nbytes,
    }
