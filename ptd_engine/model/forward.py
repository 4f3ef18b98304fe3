"""The forward pass: one function for a decoding step (a tree) and for prefill (a chain)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ptd_engine.kernels.ops import LinearWeight, Ops, StepScratch
from ptd_engine.kv_cache import KVCache
from ptd_engine.model.config import ModelConfig
from ptd_engine.model.rope import RopeTable


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer; projections that read the same input are fused along their outputs."""

    input_norm: Tensor  # [H]
    qkv: LinearWeight  # [(Hq + 2 Hkv) D, H]
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]
    o: LinearWeight  # [H, Hq D]
    post_norm: Tensor  # [H]
    gate_up: LinearWeight  # [2 I, H]
    down: LinearWeight  # [H, I]


@dataclass(frozen=True)
class ModelWeights:
    """All weights, in the layout of the model's ops.

    With tied embeddings `lm_head` is made from `embed`: the very same where the backend's `embed`
    and `linear` read one layout.
    """

    embed: LinearWeight  # [V, H]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [H]
    lm_head: LinearWeight  # [V, H]


@dataclass(frozen=True)
class ForwardBuffers:
    """The activations of a step, allocated once; a step of N rows uses the first N."""

    residual: Tensor  # [R, H]
    normed: Tensor  # [R, H]
    qkv: Tensor  # [R, (Hq + 2 Hkv) D]
    q: Tensor  # [R, Hq, D]
    attended: Tensor  # [R, Hq D]
    projected: Tensor  # [R, H]
    gate_up: Tensor  # [R, 2 I]
    activated: Tensor  # [R, I]

    @classmethod
    def allocate(
        cls, config: ModelConfig, max_rows: int, dtype: torch.dtype, device: torch.device | str
    ) -> ForwardBuffers:
        """Allocate for steps of up to `max_rows` rows."""
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        hidden, inner = config.hidden_size, config.intermediate_size

        def empty(*shape: int) -> Tensor:
            return torch.empty(max_rows, *shape, dtype=dtype, device=device)

        return cls(
            residual=empty(hidden),
            normed=empty(hidden),
            qkv=empty((heads + 2 * kv_heads) * dim),
            q=empty(heads, dim),
            attended=empty(heads * dim),
            projected=empty(hidden),
            gate_up=empty(2 * inner),
            activated=empty(inner),
        )

    @property
    def max_rows(self) -> int:
        """Rows R."""
        return self.residual.shape[0]


@dataclass(frozen=True)
class CausalLM:
    """A decoder ready to run: weights packed for its ops, rotary table, configuration.

    Attributes:
        num_parameters: elements of the checkpoint's tensors (tied ones once).
        weight_bytes: bytes a decoding step reads: all layers, norms and the output matrix, without
            the embedding rows that are not looked up.
        precision: the dtype as users name it: "bfloat16", "int8", ...
    """

    config: ModelConfig
    weights: ModelWeights
    rope: RopeTable
    ops: Ops
    device: torch.device
    dtype: torch.dtype
    num_parameters: int
    weight_bytes: int
    precision: str

    @property
    def logits_dtype(self) -> torch.dtype:
        """What the output matrix writes."""
        return self.ops.logits_dtype or self.dtype

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        prefix_len: Tensor,
        kv_bound: int,
        cache: KVCache,
        buffers: ForwardBuffers,
        exact_bound: bool = False,
        workspace: Tensor | None = None,
    ) -> Tensor:
        """Run one step and write its keys and values into cache rows prefix_len .. prefix_len + N -
        1.

        Args:
            token_ids: [N] int32.
            positions: [N] int32, below the rotary table's length.
            mask: [N, W] int64 ancestor bits, or None: row i follows row i - 1 (prefill).
            prefix_len: [1] int32 on the device.
            kv_bound: prefix_len + N <= kv_bound <= cache capacity.
            cache: the sequence's keys and values.
            buffers: room for N rows.
            exact_bound: kv_bound == prefix_len + N, for sure: see `StepScratch`. Much faster with
                the torch backend.
            workspace: see `StepScratch`.

        Returns:
            [N, H] final normalised hidden states: a view into `buffers`, valid until the next call.
        """
        cfg, ops, n = self.config, self.ops, token_ids.shape[0]
        shared, eps = StepScratch(exact_bound, workspace), cfg.rms_norm_eps
        scale = cfg.head_dim**-0.5
        residual, x = buffers.residual[:n], buffers.normed[:n]  # [N, H]
        qkv, q = buffers.qkv[:n], buffers.q[:n]  # [N, (Hq + 2 Hkv) D], [N, Hq, D]
        attended, projected = buffers.attended[:n], buffers.projected[:n]  # [N, Hq D], [N, H]
        gate_up, activated = buffers.gate_up[:n], buffers.activated[:n]  # [N, 2 I], [N, I]
        places = (self.rope.cos_sin, positions, prefix_len)

        def attend(k: Tensor, v: Tensor) -> None:
            if mask is None:
                ops.causal_attention(q, k, v, prefix_len, kv_bound, scale, attended, shared)
            else:
                ops.tree_attention(q, k, v, mask, prefix_len, kv_bound, scale, attended, shared)

        ops.embed(token_ids, self.weights.embed, residual)
        branch: Tensor | None = None  # what the residual stream has still to take in
        for layer, k, v in zip(self.weights.layers, cache.k, cache.v, strict=True):
            head_norms = (layer.q_norm, layer.k_norm)
            if (fused := ops.fused) is not None:
                fused.norm_qkv(
                    residual,
                    layer.input_norm,
                    eps,
                    layer.qkv,
                    *head_norms,
                    *places,
                    k,
                    v,
                    q,
                    shared,
                )
                attend(k, v)
                fused.linear_add(attended, layer.o, residual, shared)
                fused.norm_gate_up(residual, layer.post_norm, eps, layer.gate_up, activated, shared)
                fused.linear_add(activated, layer.down, residual, shared)
                continue
            ops.add_rms_norm(branch, residual, layer.input_norm, eps, x)
            ops.linear(x, layer.qkv, qkv)
            ops.rope_kv_write(qkv, *head_norms, eps, *places, k, v, q, shared)
            attend(k, v)
            ops.linear(attended, layer.o, projected)
            ops.add_rms_norm(projected, residual, layer.post_norm, eps, x)
            ops.linear(x, layer.gate_up, gate_up)
            ops.silu_mul(gate_up, activated)
            ops.linear(activated, layer.down, projected)
            branch = projected
        ops.add_rms_norm(branch, residual, self.weights.norm, eps, x)
        return x

    def logits(self, hidden: Tensor, out: Tensor) -> Tensor:
        """Project hidden [M, H], model's dtype, onto the vocabulary, into out [M, V] of
        `logits_dtype`. Returns `out`.
        """
        self.ops.linear(hidden, self.weights.lm_head, out)
        return out
