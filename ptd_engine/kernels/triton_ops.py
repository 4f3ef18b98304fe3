"""The Triton kernels (triton_kernels/) as ops.

Every op is row-invariant, bit for bit: what a row gets depends on the row alone, not on how many
rows there are, what they hold or how their tree is laid out. Nothing waits for the device, and what
a launch is given besides tensors depends on shapes and kv_bound: a step can be captured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ptd_engine.errors import ConfigError
from ptd_engine.kernels.ops import FusedOps, LinearWeight, SelectMode, StepScratch, WeightFormat
from ptd_engine.kernels.processing import Processing
from ptd_engine.kernels.request import KernelRequest
from ptd_engine.kernels.torch_process import process, write_logprobs
from ptd_engine.kernels.torch_select import probabilities
from ptd_engine.triton_kernels import attention_configs, linear_weights
from ptd_engine.triton_kernels.add_rms_norm import add_rms_norm, square_sums
from ptd_engine.triton_kernels.causal_attention import causal_attention
from ptd_engine.triton_kernels.embed import embed
from ptd_engine.triton_kernels.kv_commit import kv_commit
from ptd_engine.triton_kernels.linear import arrivals_for, linear
from ptd_engine.triton_kernels.linear_gate_up import norm_gate_up
from ptd_engine.triton_kernels.linear_qkv import norm_qkv
from ptd_engine.triton_kernels.rope_kv_write import rope_kv_write
from ptd_engine.triton_kernels.select import argmax_and_successors
from ptd_engine.triton_kernels.select_draw import draw
from ptd_engine.triton_kernels.silu_mul import silu_mul
from ptd_engine.triton_kernels.tree_attention import tree_attention, workspace_numel


@dataclass(frozen=True)
class _TritonOps:
    """The ops that need more than their arguments.

    Attributes:
        dtype, weight_format: of the model.
        arrivals: what split products count on; one stream at a time may use these ops.
    """

    dtype: torch.dtype
    weight_format: WeightFormat
    arrivals: Tensor

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None, *, head: bool = False
    ) -> LinearWeight:
        """See `ops.PackLinear`. With int4 weights the output matrix is int8."""
        stored = self._stored(head)
        if weight.dtype != self.dtype or weight.device != self.arrivals.device:
            raise ConfigError.for_field(
                "kernels",
                f"Triton kernels for {self.dtype} on {self.arrivals.device}",
                f"kernels made for the model's own, here {weight.dtype} on {weight.device}",
                "Pass the same dtype and device to `select_ops` and to the model.",
            )
        packed = linear_weights.pack(weight, bias, stored)
        return _linear_weight(packed)

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
        stored = "float" if embed else self._stored(head)
        return int(
            linear_weights.packed_nbytes(out_features, in_features, bias, stored, self.dtype)
        )

    def _stored(self, head: bool) -> WeightFormat:
        return "int8" if head and self.weight_format == "int4" else self.weight_format

    def linear(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:
        """See `ops.Linear`; `out` may be float32 whatever the dtype."""
        linear(x, weight.handle, out, self.arrivals)

    def norm_qkv(
        self,
        residual: Tensor,
        norm: Tensor,
        eps: float,
        weight: LinearWeight,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        cos_sin: Tensor,
        positions: Tensor,
        prefix_len: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        q_out: Tensor,
        shared: StepScratch,
    ) -> None:
        """See `ops.NormQKV`."""
        norm_qkv(
            residual,
            self._sums(residual, shared),
            norm,
            eps,
            weight.handle,
            q_norm,
            k_norm,
            cos_sin,
            positions,
            prefix_len,
            k_cache,
            v_cache,
            q_out,
            self.arrivals,
        )

    def norm_gate_up(
        self,
        residual: Tensor,
        norm: Tensor,
        eps: float,
        weight: LinearWeight,
        out: Tensor,
        shared: StepScratch,
    ) -> None:
        """See `ops.NormGateUp`."""
        sums = self._sums(residual, shared)
        norm_gate_up(residual, sums, norm, eps, weight.handle, out, self.arrivals)

    def linear_add(
        self, x: Tensor, weight: LinearWeight, residual: Tensor, shared: StepScratch
    ) -> None:
        """See `ops.LinearAdd`."""
        linear(x, weight.handle, residual, self.arrivals, self._sums(residual, shared))

    def _sums(self, residual: Tensor, shared: StepScratch) -> Tensor:
        """Sums of squares of the residual's rows, in parts; `linear_add` keeps them up to date."""

        def make() -> Tensor:
            rows, hidden = residual.shape
            part = linear_weights.tile_for(self.weight_format, self.dtype).columns
            sums = residual.new_empty(-(-hidden // part), rows, dtype=torch.float32)
            square_sums(residual, sums, part)
            return sums

        return shared.once("square_sums", make)

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
        self.linear(hidden, weight, logits)
        select(
            logits,
            temperature,
            uniform,
            sampling,
            n_verify=n_verify,
            mode=mode,
            out=out,
            vocab_limit=vocab_limit,
            processing=processing,
        )


def pack_embed(weight: Tensor, *, tied: bool) -> LinearWeight:
    """See `ops.PackEmbed`: the matrix as it is."""
    return _linear_weight(linear_weights.pack(weight, None, "float"))


def _linear_weight(packed: linear_weights.PackedWeight) -> LinearWeight:
    return LinearWeight(
        packed.data,
        packed.bias,
        f"triton-{packed.weight_format}",
        packed.out_features,
        packed.in_features,
        packed.nbytes,
        packed,
    )


def _embed(token_ids: Tensor, weight: LinearWeight, out: Tensor) -> None:
    """See `ops.Embed`."""
    embed(token_ids, weight.data, out)


def _rope_kv_write(
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
    rope_kv_write(qkv, q_norm, k_norm, eps, cos_sin, positions, prefix_len, k_cache, v_cache, q_out)


def _split(k_cache: Tensor) -> int:
    """Positions of a split of the attention: of the cache's capacity, so one in an engine."""
    return int(attention_configs.choose_split(k_cache.shape[1], k_cache.shape[0]))


def _tree_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    mask: Tensor,
    prefix_len: Tensor,
    kv_bound: int,
    scale: float,
    out: Tensor,
    shared: StepScratch | None = None,
) -> None:
    """See `ops.TreeAttention`."""
    tree_attention(
        *(q, k_cache, v_cache, mask, prefix_len, kv_bound, scale, out),
        split=_split(k_cache),
        workspace=None if shared is None else shared.workspace,
    )


def _workspace_numel(rows: int, q_heads: int, kv_heads: int, head_dim: int, capacity: int) -> int:
    """See `ops.WorkspaceNumel`."""
    split = int(attention_configs.choose_split(capacity, kv_heads))
    return int(workspace_numel(rows, q_heads, head_dim, capacity, split))


def _causal_attention(
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
    split = _split(k_cache)
    causal_attention(q, k_cache, v_cache, prefix_len, kv_bound, scale, out, split=split)


def select(
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
    """See `ops.Select`. Processing and log-probabilities are torch's."""
    logits = logits[:, :vocab_limit]
    verified = min(n_verify, logits.shape[0])
    head = raw = logits[:verified]
    if processing is not None:
        raw = head.float()
        head = raw if processing.logprob_ids is None else raw.clone()
        process(head, processing)
    if head.data_ptr() == logits.data_ptr():  # processed in place, or not at all
        argmax_and_successors(logits, sampling, out)
    else:
        argmax_and_successors(head, sampling, out[:verified])
        argmax_and_successors(logits[verified:], sampling, out[verified:])
    if mode != "greedy":
        draw(
            head,
            temperature[:verified],
            uniform[:verified],
            sampling,
            out[:verified],
            filters=mode == "filter",
        )
    if processing is not None:
        write_logprobs(raw, out[:verified, 0], processing)


def load(request: KernelRequest) -> Mapping[str, object]:
    """The ops by name."""
    ops = _TritonOps(request.dtype, request.weight_format, arrivals_for(request.device))
    found: dict[str, Any] = {
        "pack_linear": ops.pack_linear,
        "linear": ops.linear,
        "pack_embed": pack_embed,
        "embed": _embed,
        "add_rms_norm": add_rms_norm,
        "rope_kv_write": _rope_kv_write,
        "tree_attention": _tree_attention,
        "causal_attention": _causal_attention,
        "silu_mul": silu_mul,
        "head_select": ops.head_select,
        "process": process,
        "select": select,
        "probabilities": probabilities,
        "kv_commit": kv_commit,
        "shares_embedding": request.weight_format == "float",
        "logits_dtype": torch.float32,
        "packed_nbytes": ops.packed_nbytes,
        "fused": FusedOps(ops.norm_qkv, ops.norm_gate_up, ops.linear_add),
        "workspace_numel": _workspace_numel,
    }
    return found
