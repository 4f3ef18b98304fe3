"""Token selection over [N, V] logits: argmax, the largest ids, and sampling by inverse CDF.

Three kernels, all of a row alone, so that a row's tokens do not depend on the others.

1. `chunk_peaks`, grid (chunks of V, N): of each chunk the K largest logits with their ids (the
   lowest of equal ones first), its number of NaN, and the sum of exp(x - max).
2. `finish`, grid (N): the K largest of the row from those of its chunks. out[0] is the argmax, -1
   where it is not finite or the row holds NaN; the others are the successors, -1 behind the
   smallest set that reaches sampling[3] of the mass at temperature 1.
3. `draw` (select_draw.py), for rows that sample.

Traffic: 1 reads N V elements at the bandwidth of the memory (64 rows of 152k fp32 logits: 39 MB,
8 us at 4.8 TB/s); 2 reads N K V / BLOCK pairs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .target import EXACT, require_dense_rows
from .variants import Variant

CHUNK = 4096
_NOWHERE = tl.constexpr(2**31 - 1)  # the id of a place that holds no logit


@triton.jit
def largest(values: tl.tensor, ids: tl.tensor) -> tl.tensor:
    """The largest of values without NaN, and the lowest of the ids that have it."""
    peak = tl.max(values, 0)
    return peak, tl.min(tl.where(values == peak, ids, _NOWHERE), 0)


@triton.jit
def chunk_peaks_kernel(
    logits: tl.tensor,
    values: tl.tensor,
    ids: tl.tensor,
    broken: tl.tensor,
    masses: tl.tensor,
    logits_row: tl.tensor,
    limit: tl.tensor,
    FOUND: tl.constexpr,
    SLOTS: tl.constexpr,
    MASSES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One chunk of one row; values, ids [N, chunks, FOUND], broken, masses [N, chunks]."""
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    at = row * tl.num_programs(0) + chunk
    place = chunk * BLOCK + tl.arange(0, BLOCK)
    inside = place < limit
    x = tl.load(logits + row * logits_row + place, mask=inside, other=float("-inf"))
    x = x.to(tl.float32)
    is_nan = x != x
    tl.store(broken + at, tl.sum(is_nan.to(tl.int32), 0))
    x = tl.where(is_nan, float("-inf"), x)
    if MASSES:
        mass = tl.where(x == float("-inf"), 0.0, tl.exp(x - tl.max(x, 0)))
        tl.store(masses + at, tl.sum(mass, 0))
    free = tl.where(inside, place, _NOWHERE)
    slot = tl.arange(0, SLOTS)
    found = tl.full([SLOTS], float("-inf"), tl.float32)
    found_ids = tl.full([SLOTS], _NOWHERE, tl.int32)
    for k in range(FOUND):
        peak, best = largest(x, free)
        found = tl.where(slot == k, peak, found)
        found_ids = tl.where(slot == k, best, found_ids)
        taken = free == best
        x = tl.where(taken, float("-inf"), x)
        free = tl.where(taken, _NOWHERE, free)
    tl.store(values + at * FOUND + slot, found, mask=slot < FOUND)
    tl.store(ids + at * FOUND + slot, found_ids, mask=slot < FOUND)


@triton.jit
def finish_kernel(
    values: tl.tensor,
    ids: tl.tensor,
    broken: tl.tensor,
    masses: tl.tensor,
    sampling: tl.tensor,
    out: tl.tensor,
    out_row: tl.tensor,
    chunks: tl.tensor,
    FOUND: tl.constexpr,
    SUCCESSORS: tl.constexpr,
    CHUNKS: tl.constexpr,
    CANDIDATES: tl.constexpr,
) -> None:
    """One row; CHUNKS >= chunks and CANDIDATES >= chunks FOUND are powers of two."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, CHUNKS)
    known = chunk < chunks
    failed = tl.sum(tl.load(broken + row * chunks + chunk, mask=known, other=0), 0)
    candidate = tl.arange(0, CANDIDATES)
    present = candidate < chunks * FOUND
    at = row * chunks * FOUND + candidate
    x = tl.load(values + at, mask=present, other=float("-inf"))
    free = tl.load(ids + at, mask=present, other=_NOWHERE)
    peak, best = largest(x, free)
    sound = (peak > float("-inf")) & (peak < float("inf")) & (failed == 0)
    tl.store(out + row * out_row, tl.where(sound, best, -1))
    if SUCCESSORS > 0:
        top_p = tl.load(sampling + 3)
        top = tl.load(values + (row * chunks + chunk) * FOUND, mask=known, other=float("-inf"))
        mass = tl.load(masses + row * chunks + chunk, mask=known, other=0)
        total = tl.sum(tl.where(top == float("-inf"), 0.0, mass * tl.exp(top - peak)), 0)
        cuts = (top_p > 0) & (top_p < 1)
        before = 0.0
        for k in range(SUCCESSORS):
            value, best = largest(x, free)
            beyond = cuts & (before >= top_p * total) & (k > 0)
            tl.store(out + row * out_row + 1 + k, tl.where(beyond, -1, best))
            before += tl.exp(value - peak)
            taken = free == best
            x = tl.where(taken, float("-inf"), x)
            free = tl.where(taken, _NOWHERE, free)


def argmax_and_successors(logits: torch.Tensor, sampling: torch.Tensor, out: torch.Tensor) -> None:
    """Launch 1 and 2.

    logits [N, V] of any floating dtype, rows of any stride; sampling [4] fp32, read on the device;
    out [N, 1 + K] int32, written: the argmax, then the K <= V largest ids.
    """
    rows, limit = logits.shape
    if rows == 0:
        return
    require_dense_rows("select", logits=logits, out=out)
    successors = out.shape[1] - 1
    found = max(successors, 1)
    chunks = triton.cdiv(limit, CHUNK)
    values, masses = logits.new_empty(2, rows * chunks * found, dtype=torch.float32).unbind()
    ids, broken = logits.new_empty(2, rows * chunks * found, dtype=torch.int32).unbind()
    chunk_peaks_kernel[(chunks, rows)](
        logits,
        values,
        ids,
        broken,
        masses,
        logits.stride(0),
        limit,
        FOUND=found,
        SLOTS=triton.next_power_of_2(found),
        MASSES=successors > 0,
        BLOCK=CHUNK,
        num_warps=8,
        **EXACT,
    )
    finish_kernel[(rows,)](
        values,
        ids,
        broken,
        masses,
        sampling,
        out,
        out.stride(0),
        chunks,
        FOUND=found,
        SUCCESSORS=successors,
        CHUNKS=triton.next_power_of_2(chunks),
        CANDIDATES=triton.next_power_of_2(chunks * found),
        **EXACT,
    )


def variants() -> list[Variant]:
    """Greedy, and with the successors that drafters ask for, over 152k ids."""
    chunks = 38
    peaks = [
        Variant(
            f"{dtype} successors {k}",
            chunk_peaks_kernel,
            {
                "logits": f"*{dtype}",
                **dict.fromkeys(("values", "masses"), "*fp32"),
                **dict.fromkeys(("ids", "broken"), "*i32"),
                **dict.fromkeys(("logits_row", "limit"), "i32"),
            },
            {"FOUND": max(k, 1), "SLOTS": max(k, 1), "MASSES": k > 0, "BLOCK": CHUNK},
            num_warps=8,
            aligned=("logits", "values", "ids", "broken", "masses", "logits_row"),
            quick=dtype == "fp32" and k > 0,
        )
        for dtype in ("fp32", "bf16", "fp16")
        for k in (0, 8)
    ]
    finish = [
        Variant(
            f"successors {k}",
            finish_kernel,
            {
                **dict.fromkeys(("values", "masses", "sampling"), "*fp32"),
                **dict.fromkeys(("ids", "broken", "out"), "*i32"),
                **dict.fromkeys(("out_row", "chunks"), "i32"),
            },
            {
                "FOUND": max(k, 1),
                "SUCCESSORS": k,
                "CHUNKS": triton.next_power_of_2(chunks),
                "CANDIDATES": triton.next_power_of_2(chunks * max(k, 1)),
            },
            aligned=("values", "ids", "broken", "masses"),
            quick=True,
        )
        for k in (0, 8)
    ]
    return peaks + finish
