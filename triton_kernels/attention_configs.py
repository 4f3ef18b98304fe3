"""Block shapes of the attention kernels, by GPU generation, dtype and head size.

A table instead of autotuning, which would stall the first steps of a request. What decides the bits
of a row (tile, split) must be the same in every launch of an engine; block_m, warps and stages only
say how rows share the work and do not change them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .target import LaunchError


@dataclass(frozen=True)
class AttentionConfig:
    """Shapes of the blocks.

    Attributes:
        tile: positions that one update of the softmax takes, a power of two up to 64.
        row_blocks: the possible values of BLOCK_M, rising: the (tree row, query head) pairs that
            share a read of keys and values. The smallest one that holds all of a step is taken.
        stages: tiles in flight.
        tail_block: BLOCK_M where one tree row's heads are alone.
        rows_per_warp: decides the warps of a block.
        dense_most: the largest BLOCK_M with exact=False.
        dense_warps: the least warps with exact=False.
        causal_columns: columns of the result that a program of `causal_attention` computes.
        causal_stages: its tiles in flight.
        causal_warps: its warps, 0: those of any other block.
    """

    tile: int
    row_blocks: tuple[int, ...]
    stages: int
    tail_block: int = 64
    rows_per_warp: int = 16
    dense_most: int = 128
    dense_warps: int = 4
    causal_columns: int = 64
    causal_stages: int = 2
    causal_warps: int = 0

    def row_block(self, rows: int) -> int:
        """BLOCK_M for `rows` pairs of a tree row and a head of its group."""
        for block in self.row_blocks:
            if rows <= block:
                return block
        return self.row_blocks[-1]

    def warps(self, block_m: int) -> int:
        """Warps of a block: at least a group of four, which Hopper's matrix instruction wants."""
        return max(4, block_m // self.rows_per_warp)


# (generation, bytes of q's dtype, padded head size). Tiles are as large as nothing is spilled. fp32
# has no matrix instruction in full precision: small blocks.
_TABLE = {
    (80, 2, 64): AttentionConfig(64, (64, 128), 4),
    (80, 2, 128): AttentionConfig(64, (64, 128), 3, dense_most=64, dense_warps=8),
    (80, 2, 256): AttentionConfig(16, (64,), 3, rows_per_warp=8),
    (90, 2, 64): AttentionConfig(64, (64, 128), 4),
    (90, 2, 128): AttentionConfig(64, (64, 128), 4),
    (90, 2, 256): AttentionConfig(16, (64,), 3, rows_per_warp=8),
    # With eight warps Triton 3.6 spills in `causal_kernel`.
    (100, 2, 64): AttentionConfig(64, (128,), 4, tail_block=128, causal_warps=4),
    (100, 2, 128): AttentionConfig(64, (128,), 4, tail_block=128, causal_warps=4),
    (100, 2, 256): AttentionConfig(16, (64,), 3, rows_per_warp=8),
}
_FP32 = {
    64: AttentionConfig(32, (16,), 1, tail_block=16, rows_per_warp=4),
    128: AttentionConfig(16, (16,), 1, tail_block=16, rows_per_warp=2),
}
MIN_HEAD_DIM = 16


def max_head_dim(dtype: torch.dtype) -> int:
    """The largest head size: in fp32, 256 wide rows would not fit into registers."""
    return 128 if dtype == torch.float32 else 256


def padded_head_dim(head_dim: int) -> int:
    """The power of two, 64 or more, that a head is padded to in registers (never in memory)."""
    return max(64, 1 << (head_dim - 1).bit_length())


def attention_config(arch: int, dtype: torch.dtype, head_dim: int) -> AttentionConfig:
    """The blocks for a compute capability (90: 9.0) and the dtype of the queries.

    Raises:
        LaunchError: no kernel of this dtype or head size.
    """
    most = max_head_dim(dtype)
    if not MIN_HEAD_DIM <= head_dim <= most:
        allowed = f"{MIN_HEAD_DIM} to {most} in {dtype}"
        hint = "" if most == 256 else "; bfloat16 and float16 go to 256, so do the CUDA kernels"
        raise LaunchError(f"Triton attention: head_dim is {head_dim}, allowed: {allowed}{hint}")
    padded = padded_head_dim(head_dim)
    if dtype == torch.float32:
        return _FP32[padded]
    if dtype not in (torch.bfloat16, torch.float16):
        allowed = "bfloat16, float16, float32"
        raise LaunchError(f"Triton attention: dtype is {dtype}, allowed: {allowed}")
    generation = 100 if arch >= 100 else 90 if arch >= 90 else 80
    return _TABLE[generation, 2, padded]


def choose_split(max_seq_len: int, kv_heads: int) -> int:
    """Positions of one split: a function of the engine's limits alone, never of the current length.

    Few splits leave multiprocessors idle at short contexts, many cost reads and writes of partial
    states. Taken is the smallest power of two from 256 on that gives at most 512 programs for the
    longest context: 512 positions at 32k and 8 heads, 2,048 at 128k.
    """
    split = 256
    while -(-max_seq_len // split) * kv_heads > 512:
        split *= 2
    return split
