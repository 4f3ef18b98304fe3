"""Literal scalar dequantisers of ggml blocks, one element at a time, from the format's description.

They share nothing with `gguf.quants` (which is vectorised) and serve as its independent check.
"""

from __future__ import annotations

import struct
from collections.abc import Callable


def half(data: bytes, at: int) -> float:
    """The float16 at byte `at`."""
    return float(struct.unpack_from("<e", data, at)[0])


def q8_0(block: bytes) -> list[float]:
    """34 bytes: scale d, 32 signed bytes; d * q."""
    d = half(block, 0)
    return [d * q for q in struct.unpack_from("<32b", block, 2)]


def q4_0(block: bytes) -> list[float]:
    """18 bytes: d, 16 bytes; low nibbles are elements 0..15, high nibbles 16..31; d * (q - 8)."""
    d = half(block, 0)
    low = [d * ((b & 15) - 8) for b in block[2:18]]
    return low + [d * ((b >> 4) - 8) for b in block[2:18]]


def q4_1(block: bytes) -> list[float]:
    """20 bytes: d, minimum m, 16 bytes as in q4_0; d * q + m."""
    d, m = half(block, 0), half(block, 2)
    low = [d * (b & 15) + m for b in block[4:20]]
    return low + [d * (b >> 4) + m for b in block[4:20]]


def q4_k(block: bytes) -> list[float]:
    """144 bytes: d, dmin, 12 bytes of 6-bit scales and minima for 8 groups of 32, 128 bytes."""
    d, dmin = half(block, 0), half(block, 2)
    s, quants = block[4:16], block[16:144]
    out: list[float] = []
    for group in range(8):
        if group < 4:
            scale, minimum = s[group] & 63, s[group + 4] & 63
        else:
            scale = (s[group + 4] & 15) | ((s[group - 4] >> 6) << 4)
            minimum = (s[group + 4] >> 4) | ((s[group] >> 6) << 4)
        for i in range(32):
            byte = quants[32 * (group // 2) + i]
            q = byte & 15 if group % 2 == 0 else byte >> 4
            out.append(d * scale * q - dmin * minimum)
    return out


def q6_k(block: bytes) -> list[float]:
    """210 bytes: 128 low nibbles, 64 high bit pairs, 16 signed scales, d; d * scale * (q - 32)."""
    low, high, scales = block[:128], block[128:192], struct.unpack_from("<16b", block, 192)
    d = half(block, 208)
    out: list[float] = []
    for element in range(256):
        part, inside = divmod(element, 128)
        quarter, i = divmod(inside, 32)
        nibble = low[64 * part + 32 * (quarter % 2) + i]
        nibble = nibble & 15 if quarter < 2 else nibble >> 4
        pair = (high[32 * part + i] >> (2 * quarter)) & 3
        out.append(d * scales[element // 16] * ((nibble | (pair << 4)) - 32))
    return out


BLOCKS: dict[str, tuple[int, int, Callable[[bytes], list[float]], tuple[int, ...]]] = {
    # name: (elements, bytes, dequantiser, byte positions of float16 fields)
    "Q8_0": (32, 34, q8_0, (0,)),
    "Q4_0": (32, 18, q4_0, (0,)),
    "Q4_1": (32, 20, q4_1, (0, 2)),
    "Q4_K": (256, 144, q4_k, (0, 2)),
    "Q6_K": (256, 210, q6_k, (208,)),
}
