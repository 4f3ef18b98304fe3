"""How the linear kernels hold a weight matrix, and how they cut its product into programs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from .linear_product import GROUP, INT4_BLOCK

ROWS = 64  # of x, in a tile: what one wgmma takes, for every number of rows
_PROGRAMS = 264  # what a GPU of 132 multiprocessors holds at once, two on each
MOST_SPLIT_TILES = _PROGRAMS // 2  # with more tiles K is not split
_MOST_SPLITS = 4  # of K: each writes and reads M N fp32
LEAST_DEPTH = 512  # inputs of a split
FORMATS = ("float", "int8", "int4")


@dataclass(frozen=True)
class Tile:
    """Shape of a program's work: ROWS by `columns`, `depth` inputs at a time."""

    columns: int
    depth: int
    warps: int
    stages: int


@dataclass(frozen=True)
class PackedWeight:
    """A matrix [out, in] as the kernels read it.

    Attributes:
        data: [out, in] in the model's dtype, or int8, or uint8 [out, blocks of 128 inputs * 64].
        scales: fp32 [out] of int8; bf16 [out, groups of 32] of int4; else `data`, which nobody
            reads.
        minimums: bf16 [out, groups] of int4; else `data`.
        bias: [out] in the model's dtype, or None.
        weight_format: "float", "int8" or "int4".
        out_features, in_features: the matrix' shape.
    """

    data: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor
    bias: torch.Tensor | None
    weight_format: str
    out_features: int
    in_features: int

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads."""
        parts = {id(part): part for part in (self.data, self.scales, self.minimums)}
        total = sum(part.nbytes for part in parts.values())
        return total + (0 if self.bias is None else self.bias.nbytes)


def pack(weight: torch.Tensor, bias: torch.Tensor | None, weight_format: str) -> PackedWeight:
    """Quantise [out, in], or keep it as it is. int8 and int4 hold the CPU kernels' numbers."""
    outputs, inputs = weight.shape
    data = scales = minimums = weight.contiguous()
    if weight_format == "int8":
        data, scales = quantise_int8(weight)
        minimums = data
    elif weight_format == "int4":
        data, scales, minimums = quantise_int4(weight)
    return PackedWeight(data, scales, minimums, bias, weight_format, outputs, inputs)


def packed_nbytes(
    outputs: int, inputs: int, bias: bool, weight_format: str, dtype: torch.dtype
) -> int:
    """`PackedWeight.nbytes` of a matrix of this shape."""
    blocks = triton.cdiv(inputs, INT4_BLOCK)
    matrix = {
        "float": outputs * inputs * dtype.itemsize,
        "int8": outputs * (inputs + 4),
        "int4": outputs * blocks * (INT4_BLOCK // 2 + 2 * 2 * (INT4_BLOCK // GROUP)),
    }[weight_format]
    return matrix + (outputs * dtype.itemsize if bias else 0)


def quantise_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[out, in] int8 and the scales [out] fp32: max |w| / 127 of an output."""
    wide = weight.float()
    scales = wide.abs().amax(1) / 127
    steps = (wide / torch.where(scales == 0, 1, scales)[:, None]).round_().clamp_(-127, 127)
    return steps.to(torch.int8), scales


def quantise_int4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Nibbles, scales and minimums of groups of 32 inputs, each rounded to 0 .. 15.

    The scale and the minimum are rounded to bf16 first: the nibbles are right for what is stored.
    """
    outputs, inputs = weight.shape
    blocks = triton.cdiv(inputs, INT4_BLOCK)
    # A last group that is not full is filled up with its last number: its range stays.
    missing = blocks * INT4_BLOCK - inputs
    wide = torch.cat((weight, weight[:, -1:].expand(-1, missing)), 1).float()
    groups = wide.view(outputs, blocks * INT4_BLOCK // GROUP, GROUP)
    minimums = groups.amin(2).bfloat16()
    scales = ((groups.amax(2) - minimums.float()) / 15).bfloat16()
    step = scales.float()[:, :, None]
    q = ((groups - minimums.float()[:, :, None]) / torch.where(step > 0, step, 1)).round_()
    q = torch.where(step > 0, q.clamp_(0, 15), 0)
    low, high = q.to(torch.uint8).view(outputs, blocks, 2, INT4_BLOCK // 2).unbind(2)
    return (low | high << 4).view(outputs, -1).contiguous(), scales, minimums


def dequantised(weight: PackedWeight, dtype: torch.dtype) -> torch.Tensor:
    """[out, in] of the numbers that the product multiplies; int8 in fp32, int4 in `dtype`."""
    if weight.weight_format == "float":
        return weight.data
    if weight.weight_format == "int8":
        return weight.data.float() * weight.scales[:, None]
    outputs, blocks = weight.out_features, weight.data.shape[1] * 2 // INT4_BLOCK
    packed = weight.data.view(outputs, blocks, INT4_BLOCK // 2)
    q = torch.stack((packed & 15, packed >> 4), 2).view(outputs, -1, GROUP).float()
    value = q * weight.scales.float()[:, :, None] + weight.minimums.float()[:, :, None]
    return value.view(outputs, -1)[:, : weight.in_features].to(dtype)


def tile_for(weight_format: str, dtype: torch.dtype) -> Tile:
    """The tile for weights of a format, read by activations of a dtype."""
    if dtype == torch.float32:  # no tensor cores: exact products, few accumulators
        return Tile(64, 32, 8, 2)
    if weight_format == "float":
        return Tile(128, 64, 4, 4)
    return Tile(128, INT4_BLOCK, 8, 3)


def head_tile_for(weight_format: str, dtype: torch.dtype, head_dim: int) -> Tile:
    """The tile that is one head, each half padded to a power of two."""
    columns = 2 * triton.next_power_of_2(head_dim // 2)
    if dtype == torch.float32:
        return Tile(columns, 32 if columns <= 128 else 16, max(8, columns // 16), 2)
    if weight_format == "float":
        return Tile(columns, 64, max(4, columns // 16), 4 if columns <= 128 else 3)
    return Tile(columns, INT4_BLOCK, 8, 3 if columns <= 128 else 2)


def splits_for(tiles: int, inputs: int) -> int:
    """Parts of K: as many as keep all programs on the GPU at once. Of the weight's shape alone."""
    splits = 1
    while (
        splits < _MOST_SPLITS
        and tiles * splits * 2 <= _PROGRAMS
        and inputs // (splits * 2) >= LEAST_DEPTH
    ):
        splits *= 2
    return splits
