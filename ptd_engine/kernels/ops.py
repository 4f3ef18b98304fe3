"""The contract of every operation that a forward pass is made of.

An `Ops` is a frozen set of callables, resolved once by `select_ops`; the model calls them directly,
so there is no dispatch per call. Every op writes into buffers that the caller allocated, is free of
host synchronisation (no `.item()`, no boolean indexing, no shape that depends on data) and so may
be captured in a CUDA graph.

Letters: N rows of the step, H hidden size, I intermediate size, Hq query heads, Hkv key/value
heads, D head size, S capacity of the cache in rows, L layers, V vocabulary, W = ceil(N / 64) mask
words, P longest accepted path, T = kv_bound. "dtype" is the model's floating type; cache, weights
and activations share it.

Rows. `prefix_len` is a device int32 tensor of one element: cache rows below it are committed. Row i
of the step lives in cache row prefix_len + i. `kv_bound` is its host-side bound, kv_bound >=
prefix_len + N: an op reads no cache row at or above it, and what lies between prefix_len + N and
kv_bound is dead and may hold anything, NaN included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from ptd_engine.kernels.processing import Processing

SelectMode = Literal["greedy", "sample", "filter"]
# How matrices are stored: in the model's dtype, or quantised when they are packed.
WeightFormat = Literal["float", "int8", "int4"]
WEIGHT_FORMATS: tuple[WeightFormat, ...] = ("float", "int8", "int4")


@dataclass(frozen=True)
class LinearWeight:
    """A weight matrix in the layout of the backend that packed it; opaque to everybody else.

    Attributes:
        data: the packed weight; only the ops of the same backend may read it.
        bias: [out_features], dtype, or None (also where `data` holds the bias).
        layout: the layout's name, for `describe` and for errors.
        out_features, in_features: the logical shape.
        nbytes: bytes that one pass over weight and bias reads.
        handle: what the backend's native code knows the weight by, if anything.
    """

    data: Tensor
    bias: Tensor | None
    layout: str
    out_features: int
    in_features: int
    nbytes: int
    handle: Any = None


class StepScratch:
    """Values that every layer of one step derives alike (cache rows, cos and sin rows, visibility).

    The caller makes a new one for each forward pass and hands it to the ops of that pass; an op
    given None derives anew. Backends whose kernels derive such values on the fly ignore it.

    Attributes:
        exact_bound: the caller vouches that kv_bound == prefix_len + N, so that no dead row lies
            below the bound and the step's rows begin at the host-side number kv_bound - N. True
            only where the host knows the length (eager execution), never inside a captured graph.
        workspace: fp32, of as many elements as `Ops.workspace_numel` says for the largest step; an
            op may leave anything in it. None: an op that needs room makes it.
    """

    def __init__(self, exact_bound: bool = False, workspace: Tensor | None = None) -> None:
        self.exact_bound = exact_bound
        self.workspace = workspace
        self._held: dict[str, Tensor] = {}

    def once(self, key: str, make: Callable[[], Tensor]) -> Tensor:
        """Return the tensor held under `key`, made by `make` at the first call."""
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = make()
        return held


class PackLinear(Protocol):
    """Lay a weight out for `linear`.

    Called at load time; the result may share the argument's storage.
    """

    def __call__(self, weight: Tensor, bias: Tensor | None, *, head: bool = False) -> LinearWeight:
        """Arguments, with their shapes and dtypes.

        weight [out, in] dtype; bias [out] dtype or None; head: the matrix of the output, which a
        coarse weight format stores more finely.
        """
        ...


class PackedNbytes(Protocol):
    """Bytes of what `pack_linear` or, for an embedding of its own, `pack_embed` would return."""

    def __call__(
        self,
        out_features: int,
        in_features: int,
        *,
        bias: bool = False,
        head: bool = False,
        embed: bool = False,
    ) -> int:
        """Arguments: the shape of the weight, whether it has a bias, and which matrix it is."""
        ...


class PackEmbed(Protocol):
    """Lay the embedding out for `embed`; called at load time.

    The result may share the argument's storage.
    """

    def __call__(self, weight: Tensor, *, tied: bool) -> LinearWeight:
        """Arguments, with their shapes and dtypes.

        weight [V, H] dtype; tied: the output matrix is the same. A backend with
        `shares_embedding` then returns what its `linear` reads, too.
        """
        ...


class Embed(Protocol):
    """out[i] = row token_ids[i] of the embedding."""

    def __call__(self, token_ids: Tensor, weight: LinearWeight, out: Tensor) -> None:
        """Arguments, with their shapes and dtypes.

        token_ids [N] int32, each in [0, V); out [N, H] dtype, written.
        """
        ...


class Linear(Protocol):
    """out = x @ weight.T + bias, accumulated in fp32 or better, rounded once to dtype."""

    def __call__(self, x: Tensor, weight: LinearWeight, out: Tensor) -> None:
        """Arguments, with their shapes and dtypes.

        x [N, in] dtype; out [N, out] dtype, written.
        """
        ...


class AddRMSNorm(Protocol):
    """residual += x, then out = rmsnorm(residual) * weight.

    The sum is rounded to dtype (it is the residual stream); statistics are fp32; the normalised row
    is rounded to dtype *before* the multiplication with the weight, which is the order transformers
    uses.
    """

    def __call__(
        self, x: Tensor | None, residual: Tensor, weight: Tensor, eps: float, out: Tensor
    ) -> None:
        """Arguments, with their shapes and dtypes.

        x [N, H] dtype or None (nothing is added); residual [N, H] dtype, updated in place;
        weight [H] dtype; out [N, H] dtype, written.
        """
        ...


class RopeKVWrite(Protocol):
    """Split a fused projection, normalise and rotate queries and keys, store keys and values.

    q, k, v = split(qkv); q, k = rmsnorm(q) * q_norm, rmsnorm(k) * k_norm per head where given; both
    rotated by their position (pairs (d, d + D/2)); q_out[i] = q[i]; k_cache[:, prefix_len + i] =
    k[i]; v_cache likewise. No other cache row is touched. The rotation is computed in fp32 and
    rounded once.
    """

    def __call__(
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
        """Arguments, with their shapes and dtypes.

        qkv [N, (Hq + 2 Hkv) D] dtype; q_norm, k_norm [D] dtype, both or neither; cos_sin
        [max_pos, D] fp32, the D/2 cosines then the D/2 sines, attention scaling included; positions
        [N] int32 below max_pos; prefix_len [1] int32; k_cache, v_cache [Hkv, S, D] dtype, rows
        written; q_out [N, Hq, D] dtype, written.
        """
        ...


class TreeAttention(Protocol):
    """Attention of a tree: over the committed prefix, and over ancestors within the step.

    out[i] = softmax(q[i] K^T * scale) V over the cache rows visible to i.

    Cache row t is visible to row i iff t < prefix_len, or t = prefix_len + j with j < N and bit j %
    64 of mask[i, j // 64] set. Query head h reads key/value head h // (Hq / Hkv). Softmax
    statistics are fp32. Contents of invisible rows never reach the output, not even NaN in dead
    rows.
    """

    def __call__(
        self,
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
        """Arguments, with their shapes and dtypes.

        q [N, Hq, D] dtype; k_cache, v_cache [Hkv, S, D] dtype; mask [N, W] int64 (the bits of
        uint64), every row with its own bit set; prefix_len [1] int32; prefix_len + N <= kv_bound <=
        S; out [N, Hq D] dtype, written.
        """
        ...


class CausalAttention(Protocol):
    """Attention of a chain (prefill).

    As `tree_attention`, but cache row t is visible to row i iff t <= prefix_len + i.
    """

    def __call__(
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
        """Arguments, with their shapes and dtypes.

        Shapes and dtypes as for `tree_attention`.
        """
        ...


class SiluMul(Protocol):
    """out = silu(gate) * up, silu rounded to dtype before the product."""

    def __call__(self, gate_up: Tensor, out: Tensor) -> None:
        """Arguments, with their shapes and dtypes.

        gate_up [N, 2 I] dtype, gate first; out [N, I] dtype, written.
        """
        ...


class Process(Protocol):
    """Change the logits of verified rows as a request asks for: see `Processing`.

    Of its contract this is points 1 to 4; `select` does them and the log-probabilities in one.
    """

    def __call__(self, logits: Tensor, processing: Processing, *, first_row: int = 0) -> None:
        """Arguments, with their shapes and dtypes.

        logits [M, V] fp32, updated in place, its columns cut to the limit of the vocabulary; row i
        is row first_row + i of the step, a verified one.
        """
        ...


class Select(Protocol):
    """The next token of every row, and the ids of its K largest logits.

    With `processing`, rows below n_verify are processed first, and everything below is said of what
    that makes of them. Ids from vocab_limit on stand for no token: they are never chosen, listed or
    given mass, and may hold anything, NaN included.

    out[i, 0] is the argmax (ties to the lowest id) where temperature[i] is 0, mode is "greedy" or i
    >= n_verify. Elsewhere it is drawn from `probabilities` by inverse CDF in id order: the first id
    whose cumulative mass exceeds uniform[i] * total, in fp64. A row whose maximum is not finite, or
    that holds NaN, gives -1. out[i, 1:] are the ids of the K largest logits, largest first; the
    order among equal logits is not specified. With sampling[3] in (0, 1) those behind the smallest
    set of ids that reaches this share of the row's probability (at temperature 1) are -1 instead,
    the first never; a backend may leave that out.
    """

    def __call__(
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
        """Arguments, with their shapes and dtypes.

        logits [N, V] dtype; temperature, uniform [N] fp32, uniform in [0, 1); sampling [4] fp32
        (top_k, top_p, min_p; see `probabilities`, read in mode "filter" only; and top_p of the
        successors, read where K > 0); n_verify: rows below it may sample; out [N, 1 + K] int32,
        written, 1 <= 1 + K <= vocab_limit; vocab_limit: 1 to V, None for V; processing: None leaves
        the logits as they are; with it their rows below n_verify may be overwritten.
        """
        ...


class HeadSelect(Protocol):
    """`linear` with the output matrix and `select`, in one.

    A backend may leave out the logits that no row needs: of `logits` only the rows that sample or
    are processed, and all of them where successors are asked for (K > 0), are sure to be written,
    and those that are processed may hold what that made of them.
    """

    def __call__(
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
        """Arguments, with their shapes and dtypes.

        hidden [N, H] dtype; weight [V, H]; logits [N, V] `Ops.logits_dtype`, working memory; the
        others as for `select`.
        """
        ...


class Probabilities(Protocol):
    """The processed distribution of each row.

    In this order: temperature, top-k, top-p, min-p; then renormalised.

    top_k keeps exactly k ids (ties to the lowest id; 0 is off). top_p keeps the smallest set of
    most probable ids whose mass, within what top_k kept, reaches top_p, at least one (1 is off).
    min_p keeps ids with at least min_p times the largest probability (0 is off). A row with
    temperature 0 puts all mass on its argmax.
    """

    def __call__(self, logits: Tensor, temperature: Tensor, sampling: Tensor) -> Tensor:
        """Arguments, with their shapes and dtypes.

        logits [M, V] dtype; temperature [M] fp32; sampling [4] fp32; returns a new [M, V] fp64
        tensor.
        """
        ...


class KVCommit(Protocol):
    """Move the accepted rows of the last step, in every layer, to the end of the committed prefix.

    Row prefix_len - n_commit + i takes what row commit_src[i] held before the call, for i < P.
    Entries i >= n_commit name their own destination, which leaves that row as it is. `prefix_len`
    already counts the accepted rows.
    """

    def __call__(
        self,
        k_cache: Tensor,
        v_cache: Tensor,
        commit_src: Tensor,
        prefix_len: Tensor,
        n_commit: Tensor,
    ) -> None:
        """Arguments, with their shapes and dtypes.

        k_cache, v_cache [L, Hkv, S, D] dtype, updated in place; commit_src [P] int32, rising
        over the first n_commit entries; prefix_len, n_commit [1] int32.
        """
        ...


class NormQKV(Protocol):
    """`add_rms_norm` of nothing, `linear`, `rope_kv_write`: from the residual to q and the cache.

    All roundings of the three are kept; only the order of sums may differ from theirs.
    """

    def __call__(
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
        """Arguments, with their shapes and dtypes.

        residual [N, H] dtype, read; norm [H] dtype; weight [(Hq + 2 Hkv) D, H]; the others as for
        `rope_kv_write`, `eps` of all norms.
        """
        ...


class NormGateUp(Protocol):
    """`add_rms_norm` of nothing, `linear`, `silu_mul`, with all their roundings."""

    def __call__(
        self,
        residual: Tensor,
        norm: Tensor,
        eps: float,
        weight: LinearWeight,
        out: Tensor,
        shared: StepScratch,
    ) -> None:
        """Arguments, with their shapes and dtypes.

        residual [N, H] dtype, read; norm [H] dtype; weight [2 I, H]; out [N, I] dtype, written.
        """
        ...


class LinearAdd(Protocol):
    """residual += `linear`: the product is rounded to dtype, and so is the sum."""

    def __call__(
        self, x: Tensor, weight: LinearWeight, residual: Tensor, shared: StepScratch
    ) -> None:
        """Arguments, with their shapes and dtypes.

        x [N, in] dtype; weight [H, in]; residual [N, H] dtype, updated in place.
        """
        ...


@dataclass(frozen=True)
class FusedOps:
    """A layer in four ops beside the attention, where a launch costs more than a call.

    A pass that uses one of them uses all, on one residual and with one `StepScratch`: from a
    `linear_add` the next norm may know what it needs of the residual, and nothing else changes it
    after the first norm of the pass.
    """

    norm_qkv: NormQKV
    norm_gate_up: NormGateUp
    linear_add: LinearAdd


class WorkspaceNumel(Protocol):
    """fp32 elements of working memory that the attention needs at most."""

    def __call__(self, rows: int, q_heads: int, kv_heads: int, head_dim: int, capacity: int) -> int:
        """Arguments: the largest step, the heads, and the rows S of the cache."""
        ...


@dataclass(frozen=True)
class OpChoice:
    """Which backend serves an op, and why (the reasons of the backends that were passed over)."""

    op: str
    backend: str
    reason: str


# record(call) -> replay: runs `call` once with its ops recorded instead of executed; replay()
# executes them, on the same tensors. A number that may change between two replays has to come from
# a tensor: of the host-side ones kv_bound alone may differ, up to the recorded one.
Record = Callable[[Callable[[], None]], Callable[[], None]]


@dataclass(frozen=True)
class Ops:
    """One callable an op; see the class of each field for its contract.

    Attributes:
        choices: which backend serves which op, and why.
        record: how to record a forward pass, None where every op must be called each time.
        shares_embedding: a tied output matrix needs no second copy (see `PackEmbed`).
        logits_dtype: of the logits that `head_select` and `linear` with the output matrix write;
            None: the model's dtype.
        packed_nbytes: bytes of a packed matrix; None: those of its elements in the dtype.
        fused: a layer in fewer ops, None where the backend has none: the single ones do the same.
        workspace_numel: of the `StepScratch.workspace` that tree_attention works in; None: it
            needs none.
    """

    pack_linear: PackLinear
    linear: Linear
    pack_embed: PackEmbed
    embed: Embed
    add_rms_norm: AddRMSNorm
    rope_kv_write: RopeKVWrite
    tree_attention: TreeAttention
    causal_attention: CausalAttention
    silu_mul: SiluMul
    head_select: HeadSelect
    process: Process
    select: Select
    probabilities: Probabilities
    kv_commit: KVCommit
    choices: tuple[OpChoice, ...] = ()
    record: Record | None = None
    shares_embedding: bool = False
    logits_dtype: torch.dtype | None = None
    packed_nbytes: PackedNbytes | None = None
    fused: FusedOps | None = None
    workspace_numel: WorkspaceNumel | None = None

    def describe(self) -> tuple[OpChoice, ...]:
        """Return op, backend and reason for every op, in the order of the fields."""
        return self.choices
