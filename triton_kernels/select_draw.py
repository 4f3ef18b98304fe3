"""Sampling of one token a row by inverse CDF, filtered by top-k, top-p and min-p, without a sort.

Maths, as `ops.Probabilities` has it: mass(v) = exp((x_v - max) / T) in fp64. Sorted by falling
logit, equal ones by rising id, top-k and then top-p each keep a first part of the row. Such a part
is a bound on the logit, and how many of those equal to the bound belong to it, by id. The bound is
found by halving the interval of the 32-bit keys that rise with the logit: count and mass of the ids
at or above the middle say which half; it ends where one logit is left between the ends, or equal
ones. min-p is a bound on the mass. Then the first id whose cumulative mass, in id order, exceeds
uniform * total is the token.

Grid: (rows that may sample); a program walks over its row, and ends at once if its temperature is
0. Traffic: a row of logits a pass, out of L2: 2 passes to draw, and up to 31 for a filter, of which
a bound between distinct logits takes about log2(range / gap).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .target import EXACT
from .variants import Variant

_BLOCK = 2048
_WARPS = 8
_NOWHERE = tl.constexpr(2**31 - 1)
_LOWEST = tl.constexpr(-(2**31))  # below the key of every logit that is a number


@triton.jit
def rising_key(x: tl.tensor) -> tl.tensor:
    """int32 that rises with the fp32 value; one for both zeros."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def mass_of(x: tl.tensor, peak: tl.tensor, heat: tl.tensor) -> tl.tensor:
    """exp((x - peak) / heat) in fp64."""
    return tl.exp((x.to(tl.float64) - peak) / heat)


@triton.jit
def at_least(
    logits: tl.tensor,
    limit: tl.tensor,
    bound: tl.tensor,
    peak: tl.tensor,
    heat: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Number and mass of the ids whose key is `bound` (int64) or more."""
    count = tl.full([], 0, tl.int32)
    mass = tl.full([], 0, tl.float64)
    for start in range(0, limit, BLOCK):
        place = start + tl.arange(0, BLOCK)
        x = tl.load(logits + place, mask=place < limit, other=float("-inf")).to(tl.float32)
        taken = (place < limit) & (rising_key(x).to(tl.int64) >= bound)
        count += tl.sum(taken.to(tl.int32), 0)
        mass += tl.sum(tl.where(taken, mass_of(x, peak, heat), 0.0), 0)
    return count, mass


@triton.jit
def kept_masses(
    logits: tl.tensor,
    limit: tl.tensor,
    start: tl.tensor,
    bound: tl.tensor,
    ties: tl.tensor,
    seen: tl.tensor,
    least: tl.tensor,
    peak: tl.tensor,
    heat: tl.tensor,
    FILTER: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Masses of a block, 0 where filtered; and how many keys so far, `seen` before, are `bound`."""
    place = start + tl.arange(0, BLOCK)
    inside = place < limit
    x = tl.load(logits + place, mask=inside, other=float("-inf")).to(tl.float32)
    mass = tl.where(inside, mass_of(x, peak, heat), 0.0)
    if FILTER:
        key = rising_key(x).to(tl.int64)
        tie = (inside & (key == bound)).to(tl.int32)
        rank = seen + tl.cumsum(tie, 0) - tie
        kept = (key > bound) | ((tie > 0) & (rank < ties))
        mass = tl.where(kept & (mass >= least), mass, 0.0)
        seen += tl.sum(tie, 0)
    return mass, seen


@triton.jit
def draw_kernel(
    logits: tl.tensor,
    temperature: tl.tensor,
    uniform: tl.tensor,
    sampling: tl.tensor,
    out: tl.tensor,
    logits_row: tl.tensor,
    out_row: tl.tensor,
    limit: tl.tensor,
    FILTER: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One row: replaces the argmax in out[row, 0], unless that is -1 or the temperature 0."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_row
    heat = tl.load(temperature + row).to(tl.float64)
    argmax = tl.load(out + row * out_row)
    if (heat > 0) & (argmax >= 0):
        top = tl.load(logits + argmax).to(tl.float32)
        peak = top.to(tl.float64)
        bound = tl.full([], _LOWEST, tl.int64)
        ties = tl.full([], _NOWHERE, tl.int32)
        least = tl.full([], 0, tl.float64)
        if FILTER:
            above = rising_key(top).to(tl.int64) + 1
            top_k = tl.load(sampling)
            top_p = tl.load(sampling + 1).to(tl.float64)
            least = tl.load(sampling + 2).to(tl.float64)
            count, mass = at_least(logits, limit, bound, peak, heat, BLOCK)
            if (top_k > 0) & (top_k < limit):
                k = top_k.to(tl.int32)
                hi, count_hi, mass_hi = above, count * 0, mass * 0
                while (hi - bound > 1) & (count > k):
                    middle = (hi + bound) >> 1
                    n, m = at_least(logits, limit, middle, peak, heat, BLOCK)
                    enough = n >= k
                    bound = tl.where(enough, middle, bound)
                    count = tl.where(enough, n, count)
                    mass = tl.where(enough, m, mass)
                    hi = tl.where(enough, hi, middle)
                    count_hi = tl.where(enough, count_hi, n)
                    mass_hi = tl.where(enough, mass_hi, m)
                if count > k:  # more than fit are equal to the bound
                    ties = k - count_hi
                    mass = mass_hi + (mass - mass_hi) * (ties / (count - count_hi).to(tl.float64))
                    count = k
            if top_p < 1:
                wanted = top_p * mass
                hi, count_hi, mass_hi = above, count * 0, mass * 0
                while (hi - bound > 1) & (count - count_hi > 1):
                    middle = (hi + bound) >> 1
                    n, m = at_least(logits, limit, middle, peak, heat, BLOCK)
                    enough = m >= wanted
                    ties = tl.where(enough, _NOWHERE, ties)
                    bound = tl.where(enough, middle, bound)
                    count = tl.where(enough, n, count)
                    mass = tl.where(enough, m, mass)
                    hi = tl.where(enough, hi, middle)
                    count_hi = tl.where(enough, count_hi, n)
                    mass_hi = tl.where(enough, mass_hi, m)
                equal = (count - count_hi).to(tl.float64)
                if equal > 1:
                    each = (mass - mass_hi) / equal
                    needed = tl.ceil(tl.minimum((wanted - mass_hi) / each, equal))
                    ties = tl.maximum(needed.to(tl.int32), 1)
        total = tl.full([], 0, tl.float64)
        seen = tl.full([], 0, tl.int32)
        for start in range(0, limit, BLOCK):
            masses, seen = kept_masses(
                logits, limit, start, bound, ties, seen, least, peak, heat, FILTER, BLOCK
            )
            total += tl.sum(masses, 0)
        threshold = tl.load(uniform + row).to(tl.float64) * total
        running = tl.full([], 0, tl.float64)
        seen = tl.full([], 0, tl.int32)
        start = tl.full([], 0, tl.int32)
        token = tl.full([], _NOWHERE, tl.int32)
        while (start < limit) & (token == _NOWHERE):
            masses, seen = kept_masses(
                logits, limit, start, bound, ties, seen, least, peak, heat, FILTER, BLOCK
            )
            here = tl.sum(masses, 0)
            if running + here > threshold:
                place = start + tl.arange(0, BLOCK)
                passed = (running + tl.cumsum(masses, 0) > threshold) & (masses > 0)
                token = tl.min(tl.where(passed, place, _NOWHERE), 0)
            running += here
            start += BLOCK
        # A sum that a cumulative sum just misses: the argmax is as good a token as any.
        tl.store(out + row * out_row, tl.where(token == _NOWHERE, argmax, token))


def draw(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    uniform: torch.Tensor,
    sampling: torch.Tensor,
    out: torch.Tensor,
    *,
    filters: bool,
) -> None:
    """Launch.

    logits [M, V] of any floating dtype, rows of any stride; temperature, uniform [M] fp32; sampling
    [4] fp32: top_k, top_p, min_p, read on the device where `filters`; out [M, ...] int32 whose
    first column holds the argmax, or -1 for a row that fails.
    """
    rows, limit = logits.shape
    if rows == 0:
        return
    draw_kernel[(rows,)](
        logits,
        temperature,
        uniform,
        sampling,
        out,
        logits.stride(0),
        out.stride(0),
        limit,
        FILTER=filters,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
        **EXACT,
    )


def variants() -> list[Variant]:
    """With filters and without."""
    return [
        Variant(
            f"{dtype}{' filter' if filters else ''}",
            draw_kernel,
            {
                "logits": f"*{dtype}",
                **dict.fromkeys(("temperature", "uniform", "sampling"), "*fp32"),
                "out": "*i32",
                **dict.fromkeys(("logits_row", "out_row", "limit"), "i32"),
            },
            {"FILTER": filters, "BLOCK": _BLOCK},
            num_warps=_WARPS,
            aligned=("logits", "temperature", "uniform", "logits_row"),
            quick=dtype == "fp32" and filters,
        )
        for dtype in ("fp32", "bf16", "fp16")
        for filters in (False, True)
    ]
