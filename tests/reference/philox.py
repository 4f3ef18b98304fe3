"""Philox4x32-10, the counter-based generator of Salmon et al. 2011 (Random123)."""

from __future__ import annotations

Words = tuple[int, int, int, int]

_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_MASK = 0xFFFFFFFF


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Ten rounds; every word is an unsigned 32-bit integer."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        high_0, low_0 = product_0 >> 32, product_0 & _MASK
        high_1, low_1 = product_1 >> 32, product_1 & _MASK
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0 = (k0 + _WEYL_0) & _MASK
        k1 = (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def philox_uniform(seed: int, position: int, draw: int = 0) -> float:
    """24 random bits in [0, 1), a function of the seed, the position and the draw's number."""
    counter = (position & _MASK, (position >> 32) & _MASK, draw & _MASK, 0)
    key = (seed & _MASK, (seed >> 32) & _MASK)
    return (philox4x32(counter, key)[0] >> 8) * 2.0**-24
