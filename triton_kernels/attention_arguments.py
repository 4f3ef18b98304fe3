"""The arguments of an attention, checked once and in the form in which kernels take them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .attention_configs import AttentionConfig, attention_config, padded_head_dim
from .target import LaunchError, compute_capability

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Arguments:
    """What the launchers of all attention kernels derive alike.

    Attributes:
        k, v: the caches; fp8 ones as bytes where the GPU does not know the format.
        n, q_heads, kv_heads, group, rows, head_dim: numbers; rows is n * group.
        split: positions of a split.
        c: scale * log2(e), with the scale of the keys.
        config: the blocks.
    """

    k: Tensor
    v: Tensor
    n: int
    q_heads: int
    kv_heads: int
    head_dim: int
    split: int
    c: float
    config: AttentionConfig
    strides: tuple[int, ...]

    @property
    def group(self) -> int:
        """Query heads for each KV head."""
        return self.q_heads // self.kv_heads

    @property
    def rows(self) -> int:
        """Pairs of a row of the step and a head of a group."""
        return self.n * self.group

    @property
    def shape_constants(self) -> dict[str, int]:
        """The constants that every kernel has."""
        return {
            "GROUP": self.group,
            "D": self.head_dim,
            "D_PAD": padded_head_dim(self.head_dim),
            "TILE": self.config.tile,
            "SPLIT": self.split,
        }

    @staticmethod
    def of(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        scale: float,
        out: Tensor,
        split: int,
        k_scale: float,
        v_scale: float,
        config: AttentionConfig | None = None,
    ) -> Arguments:
        """Check, and derive.

        Raises:
            LaunchError: the field, its value and what is allowed.
        """
        n, q_heads, head_dim = q.shape
        kv_heads = k_cache.shape[0]
        arch = compute_capability(q.device)
        config = config or attention_config(arch, q.dtype, head_dim)
        _require(k_cache.shape == v_cache.shape, "v_cache", tuple(v_cache.shape), "k_cache's shape")
        _require(k_cache.shape[2] == head_dim, "k_cache", tuple(k_cache.shape), "q's head size")
        _require(q_heads % kv_heads == 0, "q", tuple(q.shape), f"a multiple of {kv_heads} heads")
        for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
            _require(cache.dtype in (q.dtype, FP8), name, cache.dtype, f"{q.dtype} or {FP8}")
        _require(v_cache.dtype == k_cache.dtype, "v_cache", v_cache.dtype, "k_cache's dtype")
        for name, x in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache), ("out", out)):
            _require(x.stride(-1) == 1, name, x.stride(), "1 as the last stride")
        _require(out.shape == (n, q_heads * head_dim), "out", tuple(out.shape), "[N, Hq D]")
        _require(out.dtype == q.dtype, "out", out.dtype, f"{q.dtype}")
        _require(
            split % config.tile == 0 and split > 0, "split", split, f"multiples of {config.tile}"
        )
        c = scale * k_scale * math.log2(math.e)
        _require(0 < c < math.inf, "scale * k_scale", scale * k_scale, "finite and above 0")
        _require(0 < v_scale < math.inf, "v_scale", v_scale, "finite and above 0")
        as_bytes = k_cache.dtype == FP8 and arch < 90
        if as_bytes:  # taking bytes apart needs registers
            config = replace(config, row_blocks=config.row_blocks[:1])
        strides = (*q.stride()[:2], *k_cache.stride()[:2], *v_cache.stride()[:2])
        return Arguments(
            k_cache.view(torch.uint8) if as_bytes else k_cache,
            v_cache.view(torch.uint8) if as_bytes else v_cache,
            n,
            q_heads,
            kv_heads,
            head_dim,
            split,
            c,
            config,
            strides,
        )


def room_for(workspace: Tensor | None, numel: int, like: Tensor) -> Tensor:
    """The workspace if it has `numel` fp32 elements, a new one for None.

    Raises:
        LaunchError: it is too small, or of another dtype.
    """
    if workspace is None:
        return torch.empty(numel, dtype=torch.float32, device=like.device)
    held = f"{workspace.numel()} elements of {workspace.dtype}"
    enough = workspace.numel() >= numel and workspace.dtype == torch.float32
    _require(enough, "workspace", held, f"{numel} of float32")
    return workspace


def _require(holds: bool, field: str, value: object, allowed: str) -> None:
    if not holds:
        raise LaunchError(f"Triton attention: {field} is {value}, allowed: {allowed}")
