"""The operations in plain torch: the specification, and what serves where no kernel does.

Measured on 2 cores with AVX-512 and AMX, SmolLM2-135M's shapes, 1/8/16/32/64 rows: oneDNN-packed
weights against plain ones are 1.3 to 2.0 times as fast in fp32 at 8 to 32 rows and equal within 7 %
at one, 1.05 to 1.7 times in bf16 throughout; `scaled_dot_product_attention` beats explicit products
1.6 to 6 times at a 512-token prefix, and needs no repeated key/value heads.

Row invariance (a row's result does not depend on the other rows, bitwise): the pointwise ops, the
norms and `select` have it. The packed linear mostly does (fp32: one row differs from several where
in_features is 1536; bf16: 64 rows and more differ at 49,152 outputs). Attention does not: its tiles
follow N and T, by about 1e-7 in fp32 and one bf16 rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ptd_engine.kernels.ops import LinearWeight, SelectMode, StepScratch
from ptd_engine.kernels.processing import Processing
from ptd_engine.kernels.request import KernelRequest
from ptd_engine.kernels.torch_process import process
from ptd_engine.kernels.torch_select import probabilities, select

_PACKED = "onednn-packed"
# Below this many rows a head's queries do not fill SDPA's row tile: the heads of a group are
# stacked into one tile.
_STACK_GROUP_BELOW = 16


def packing_unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return None where oneDNN's packed linear works, else the reason why it does not."""
    if device.type != "cpu":
        return f"oneDNN packs weights on cpu, not on {device.type}"
    try:
        weight = torch.eye(16, dtype=dtype)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        result = torch.ops.mkldnn._linear_pointwise(weight, packed, None, "none", [], "")
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        return f"oneDNN refused a packed {dtype} linear: {str(error).splitlines()[0]}"
    return None if torch.equal(result, weight) else f"oneDNN computed a wrong {dtype} product"


@dataclass(frozen=True)
class LinearPacker:
    """`pack_linear`: oneDNN's blocked layout where `packed`, else the matrix as it is."""

    packed: bool

    def __call__(self, weight: Tensor, bias: Tensor | None, *, head: bool = False) -> LinearWeight:
        """See `ops.PackLinear`."""
        out_features, in_features = weight.shape
        nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        layout, data = "plain", weight
        if self.packed:
            layout, data = _PACKED, torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        return LinearWeight(data, bias, layout, out_features, in_features, nbytes)


def linear(x: Tensor, weight: LinearWeight, out: Tensor) -> None:
    """See `ops.Linear`."""
    if weight.layout == _PACKED:
        out.copy_(torch.ops.mkldnn._linear_pointwise(x, weight.data, weight.bias, "none", [], ""))
    elif weight.bias is None:
        torch.mm(x, weight.data.t(), out=out)
    else:
        torch.addmm(weight.bias, x, weight.data.t(), out=out)


def pack_embed(weight: Tensor, *, tied: bool) -> LinearWeight:
    """See `ops.PackEmbed`."""
    rows, width = weight.shape
    return LinearWeight(weight, None, "plain", rows, width, weight.nbytes)


def embed(token_ids: Tensor, weight: LinearWeight, out: Tensor) -> None:
    """See `ops.Embed`."""
    torch.index_select(weight.data, 0, token_ids, out=out)


def head_select(
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
    linear(hidden, weight, logits)
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


def _rms(x: Tensor, eps: float) -> Tensor:
    """Return x over the root mean square of its last dimension: fp32 statistics, x's dtype."""
    wide = x.float()
    inverse = wide.pow(2).mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * inverse).to(x.dtype)


def add_rms_norm(
    x: Tensor | None, residual: Tensor, weight: Tensor, eps: float, out: Tensor
) -> None:
    """See `ops.AddRMSNorm`."""
    if x is not None:
        residual.add_(x)
    torch.mul(_rms(residual, eps), weight, out=out)


def _cache_rows(prefix_len: Tensor, n: int) -> Tensor:
    return torch.arange(n, device=prefix_len.device) + prefix_len


def rope_kv_write(
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
    shared = shared or StepScratch()
    n, q_heads, dim = q_out.shape
    kv_heads, half = k_cache.shape[0], dim // 2
    heads = qkv.view(n, q_heads + 2 * kv_heads, dim)
    rotated_heads = q_heads + kv_heads
    qk = heads[:, :rotated_heads]
    if q_norm is not None and k_norm is not None:
        qk = _rms(qk, eps)
        qk[:, :q_heads].mul_(q_norm)
        qk[:, q_heads:].mul_(k_norm)
    table = shared.once("rope", lambda: cos_sin.index_select(0, positions).view(n, 1, 2, half))
    rows = shared.once("rows", lambda: _cache_rows(prefix_len, n))
    halves = qk.view(n, rotated_heads, 2, half)
    sin = table[:, :, 1]
    rotated = halves * table[:, :, :1]
    rotated[:, :, 0].addcmul_(halves[:, :, 1].to(sin.dtype), sin, value=-1)
    rotated[:, :, 1].addcmul_(halves[:, :, 0].to(sin.dtype), sin)
    rotated = rotated.view(n, rotated_heads, dim).to(qkv.dtype)
    q_out.copy_(rotated[:, :q_heads])
    k_cache.index_copy_(1, rows, rotated[:, q_heads:].transpose(0, 1))
    v_cache.index_copy_(1, rows, heads[:, rotated_heads:].transpose(0, 1))


def _tree_visible(mask: Tensor, node: Tensor, n: int) -> Tensor:
    """Return [N, T] bool: is cache row prefix_len + node[t] visible to row i."""
    inside = node.clamp(0, n - 1)
    bits = (mask.index_select(1, inside >> 6) >> (inside & 63)) & 1
    return (node < 0) | ((node < n) & (bits != 0))


def _causal_visible(mask: Tensor | None, node: Tensor, n: int) -> Tensor:
    return node <= torch.arange(n, device=node.device)[:, None]


def _bias(
    mask: Tensor | None, prefix_len: Tensor, n: int, kv_bound: int, exact: bool, dtype: torch.dtype
) -> Tensor:
    """[N, T] dtype: 0 where row t is visible to row i, -inf elsewhere."""
    device = prefix_len.device
    bias = torch.zeros(n, kv_bound, dtype=dtype, device=device)
    tail = bias[:, kv_bound - n :] if exact else bias
    node = torch.arange(tail.shape[1], device=device)
    if not exact:
        node = node - prefix_len
    visible = _causal_visible(mask, node, n) if mask is None else _tree_visible(mask, node, n)
    tail.masked_fill_(visible.logical_not_(), float("-inf"))
    return bias


def _attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    mask: Tensor | None,
    prefix_len: Tensor,
    kv_bound: int,
    scale: float,
    out: Tensor,
    shared: StepScratch | None,
) -> None:
    """Attention of a tree (mask) or of a chain (None)."""
    shared = shared or StepScratch()
    exact = shared.exact_bound
    n, q_heads, dim = q.shape
    kv_heads = k_cache.shape[0]
    group = q_heads // kv_heads
    keys, values = k_cache[None, :, :kv_bound], v_cache[None, :, :kv_bound]
    if not exact:
        # 0 * NaN is NaN: a dead row must be cleared in V, not merely weighted with 0, and in K
        # before the scores.
        dead = shared.once(
            "dead",
            lambda: (torch.arange(kv_bound, device=q.device) >= prefix_len + n).view(1, 1, -1, 1),
        )
        keys, values = keys.masked_fill(dead, 0), values.masked_fill(dead, 0)
    bias: Tensor | None = None
    if not (exact and n == 1):  # one row at the exact bound sees everything
        bias = shared.once("bias", lambda: _bias(mask, prefix_len, n, kv_bound, exact, q.dtype))
    if n < _STACK_GROUP_BELOW:
        stacked = q.view(n, kv_heads, group, dim).permute(1, 2, 0, 3)
        if bias is not None:
            step_bias = bias
            bias = shared.once("stacked_bias", lambda: step_bias.repeat(group, 1))
        result = F.scaled_dot_product_attention(
            stacked.reshape(1, kv_heads, group * n, dim), keys, values, attn_mask=bias, scale=scale
        )
        result = result.view(kv_heads, group, n, dim).permute(2, 0, 1, 3)
    else:
        result = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys,
            values,
            attn_mask=bias,
            scale=scale,
            enable_gqa=group > 1,
        )
        result = result[0].view(kv_heads, group, n, dim).permute(2, 0, 1, 3)
    out.view(n, kv_heads, group, dim).copy_(result)


def tree_attention(
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
    _attend(q, k_cache, v_cache, mask, prefix_len, kv_bound, scale, out, shared)


def causal_attention(
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
    _attend(q, k_cache, v_cache, None, prefix_len, kv_bound, scale, out, shared)


def silu_mul(gate_up: Tensor, out: Tensor) -> None:
    """See `ops.SiluMul`."""
    gate, up = gate_up.chunk(2, dim=-1)
    torch.mul(F.silu(gate), up, out=out)


def kv_commit(
    k_cache: Tensor, v_cache: Tensor, commit_src: Tensor, prefix_len: Tensor, n_commit: Tensor
) -> None:
    """See `ops.KVCommit`. All rows are read before any is written, so ranges may overlap."""
    last = k_cache.shape[2] - 1
    source = commit_src.clamp(max=last)
    target = torch.arange(commit_src.shape[0], device=commit_src.device) + (prefix_len - n_commit)
    target = target.clamp_(max=last)
    for cache in (k_cache, v_cache):
        cache.index_copy_(2, target, cache.index_select(2, source))


def probe(request: KernelRequest) -> str | None:
    """None where this backend can serve, else the reason why not."""
    if request.weight_format != "float":
        return f"has no {request.weight_format} weights"
    return None


def load(request: KernelRequest) -> Mapping[str, object]:
    """Return the ops of this backend by name; the linear layout is settled here, once."""
    return {
        "pack_linear": LinearPacker(packing_unavailable(request.device, request.dtype) is None),
        "linear": linear,
        "pack_embed": pack_embed,
        "embed": embed,
        "head_select": head_select,
        "add_rms_norm": add_rms_norm,
        "rope_kv_write": rope_kv_write,
        "tree_attention": tree_attention,
        "causal_attention": causal_attention,
        "silu_mul": silu_mul,
        "process": process,
        "select": select,
        "probabilities": probabilities,
        "kv_commit": kv_commit,
    }
