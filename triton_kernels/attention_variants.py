"""The forms of the attention kernels that `aot` compiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton

from .attention_configs import AttentionConfig, attention_config, max_head_dim, padded_head_dim
from .causal_attention import causal_kernel
from .tree_attention_dense import combine_kernel, dense_kernel
from .tree_attention_prefix import prefix_kernel
from .tree_attention_tail import tail_kernel
from .variants import ARCHS, Variant

HEAD_DIMS = (64, 80, 96, 128, 256)
_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_FLOATS = ("c", "v_scale")
_SPLIT = 512
_QUICK_FP32 = (90, torch.float32)


def _variant(
    kernel: Any,
    arch: int,
    dtype: torch.dtype,
    head_dim: int,
    block: int,
    *,
    group: int = 4,
    words: int = 1,
    cache: str = "",
    stages: int = 1,
    quick: bool = False,
) -> Variant:
    """One form; what it is made of is told by the names of the kernel's parameters."""
    name = _NAMES[dtype]
    config = attention_config(arch, dtype, head_dim)
    types = {"mask_ptr": "*i64", "prefix_len_ptr": "*i32", "acc_ptr": "*fp32", "stats_ptr": "*fp32"}
    types |= dict.fromkeys(("k_ptr", "v_ptr"), f"*{cache or name}")
    types |= dict.fromkeys(("q_ptr", "out_ptr"), f"*{name}") | dict.fromkeys(_FLOATS, "fp32")
    constants = {
        "GROUP": group,
        "D": head_dim,
        "D_PAD": padded_head_dim(head_dim),
        "BLOCK_M": block,
        "COLUMNS": min(config.causal_columns, padded_head_dim(head_dim)),
        "GROUP_PAD": triton.next_power_of_2(group),
        "TILE": config.tile,
        "SPLIT": _SPLIT,
        "WORDS": words,
    }
    arguments = [x for x in kernel.arg_names if x not in constants]
    label = f"{name} d{head_dim} m{block} g{group}" if "BLOCK_M" in kernel.arg_names else ""
    return Variant(
        name=(label or f"{name} d{head_dim} g{group}")
        + (f" w{words}" if words > 1 else "")
        + (f" cache {cache}" if cache else ""),
        kernel=kernel,
        signature={x: types.get(x, "i32") for x in arguments},
        constants={x: value for x, value in constants.items() if x in kernel.arg_names},
        num_warps=_warps(kernel, config, block),
        num_stages=stages,
        aligned=tuple(x for x in arguments if x.endswith("_ptr") or x.startswith("stride_")),
        archs=(arch,),
        quick=quick,
    )


def _warps(kernel: Any, config: AttentionConfig, block: int) -> int:
    """As the launchers choose them."""
    if kernel is combine_kernel:
        return 4
    if kernel is causal_kernel and config.causal_warps:
        return config.causal_warps
    return max(config.warps(block), config.dense_warps if kernel is dense_kernel else 0)


def _of(
    config: AttentionConfig, arch: int, dtype: torch.dtype, head_dim: int, **options: Any
) -> Iterator[Variant]:
    """All kernels for one dtype and head size."""
    blocks = config.row_blocks[:1] if options.get("cache") == "u8" else config.row_blocks
    for block in blocks:
        yield _variant(prefix_kernel, arch, dtype, head_dim, block, stages=config.stages, **options)
        if block <= config.dense_most and options.get("cache") != "u8":
            yield _variant(
                dense_kernel, arch, dtype, head_dim, block, stages=config.stages, **options
            )
    for kernel in (tail_kernel, combine_kernel):
        yield _variant(kernel, arch, dtype, head_dim, config.tail_block, **options)
    stages = config.causal_stages
    yield _variant(
        causal_kernel, arch, dtype, head_dim, config.tail_block, stages=stages, **options
    )


def variants() -> list[Variant]:
    """Every dtype and head size for each GPU; group sizes and mask words at one of them."""
    found: list[Variant] = []
    for arch in ARCHS:
        for dtype in _NAMES:
            for head_dim in [x for x in HEAD_DIMS if x <= max_head_dim(dtype)]:
                config = attention_config(arch, dtype, head_dim)
                quick = head_dim == 128 and (
                    dtype is torch.bfloat16 or (arch, dtype) == _QUICK_FP32
                )
                found += _of(config, arch, dtype, head_dim, quick=quick)
        config = attention_config(arch, torch.bfloat16, 128)
        fp8 = "fp8e4nv" if arch >= 90 else "u8"
        found += _of(config, arch, torch.bfloat16, 128, cache=fp8)
        for group, words in ((1, 1), (7, 2), (8, 4)):
            found += _of(config, arch, torch.bfloat16, 128, group=group, words=words)
    return found
