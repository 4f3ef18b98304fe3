"""Ancestors of a tree node, from its mask words: on the device, where the tree is data.

Parents precede their children, so the set bits of a row in rising order are the row's path from the
root down: bit number e is its ancestor at depth e, and the last one the row itself. Bit number e of
a word is found by bisection over the counts of its halves, quarters, eighths, ...
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def bit_counts(word: tl.tensor) -> tl.tensor:
    """Set bits of each field of 2, 4, 8, 16, 32 and 64 bits of an int64, in place of the field."""
    in2 = word - ((word >> 1) & 0x5555555555555555)
    in4 = (in2 & 0x3333333333333333) + ((in2 >> 2) & 0x3333333333333333)
    in8 = (in4 + (in4 >> 4)) & 0x0F0F0F0F0F0F0F0F
    in16 = (in8 + (in8 >> 8)) & 0x00FF00FF00FF00FF
    in32 = (in16 + (in16 >> 16)) & 0x0000FFFF0000FFFF
    return in2, in4, in8, in16, in32, (in32 + (in32 >> 32)) & 0x7F


@triton.jit
def depth_of(mask_ptr: tl.tensor, row: tl.tensor, WORDS: tl.constexpr) -> tl.tensor:
    """Ancestors of a row of mask [N, WORDS], itself not counted, as int32."""
    depth = tl.cast(-1, tl.int64)
    for w in tl.static_range(WORDS):
        _, _, _, _, _, in64 = bit_counts(tl.load(mask_ptr + row * WORDS + w))
        depth += in64
    return depth.to(tl.int32)


@triton.jit
def ancestor_at(
    mask_ptr: tl.tensor, row: tl.tensor, depth: tl.tensor, WORDS: tl.constexpr
) -> tl.tensor:
    """Ancestors of a row at the depths given (a block), as int64; 0 where there is none."""
    rank = depth.to(tl.int64)
    node = rank * 0
    # A loop: unrolled, the counts of all words would be held in registers throughout.
    for w in tl.range(WORDS):
        word = tl.load(mask_ptr + row * WORDS + w)
        in2, in4, in8, in16, in32, in64 = bit_counts(word)
        here = (rank >= 0) & (rank < in64)
        rest = tl.where(here, rank, 0)
        at = rank * 0
        for level in tl.static_range(5, -1, -1):
            if level == 5:
                counts = in32
            elif level == 4:
                counts = in16
            elif level == 3:
                counts = in8
            elif level == 2:
                counts = in4
            elif level == 1:
                counts = in2
            else:
                counts = word
            low = (counts >> at) & ((1 << (1 << level)) - 1)
            above = rest >= low
            rest = tl.where(above, rest - low, rest)
            at = tl.where(above, at + (1 << level), at)
        node = tl.where(here, 64 * w + at, node)
        rank -= in64
    return node
