"""What `kernels --gpu` times: shapes, the bytes that they move, and how times are compared.

No tensor is made here: all of it is arithmetic that a machine without a GPU can check.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OWN_ATTENTION = ("triton", "triton dense", "cuda")
CUBLAS = "cublas"


@dataclass(frozen=True)
class AttentionCase:
    """One step's attention: a tree of `rows` nodes behind `prefix` committed tokens."""

    q_heads: int
    kv_heads: int
    head_dim: int
    prefix: int
    rows: int

    @property
    def heads(self) -> str:
        """Query heads / key and value heads."""
        return f"{self.q_heads}/{self.kv_heads}"

    def nbytes(self, itemsize: int) -> int:
        """Keys and values once for the whole tree, queries and outputs once."""
        caches = 2 * self.kv_heads * (self.prefix + self.rows) * self.head_dim
        return itemsize * (caches + 2 * self.rows * self.q_heads * self.head_dim)


@dataclass(frozen=True)
class LinearCase:
    """A weight matrix of a model; `head`: the output matrix, which int4 models keep in int8."""

    model: str
    matrix: str
    inputs: int
    outputs: int
    head: bool = False

    def nbytes(self, rows: int, itemsize: int, weight_nbytes: int) -> int:
        """The packed weight, inputs and outputs, each once."""
        return weight_nbytes + itemsize * rows * (self.inputs + self.outputs)


@dataclass(frozen=True)
class Grid:
    """All cases of one run; `rows` of both kinds, rising, with 1 as the first."""

    heads: Sequence[tuple[int, int]]
    head_dim: int
    prefixes: Sequence[int]
    rows: Sequence[int]
    linears: Sequence[LinearCase]

    def attention(self) -> list[AttentionCase]:
        """Head by head, the lengths that matter most first, few rows before many."""
        return [
            AttentionCase(*heads, self.head_dim, prefix, rows)
            for heads in self.heads
            for prefix in sorted(self.prefixes, key=_importance)
            for rows in self.rows
        ]


def _importance(prefix: int) -> tuple[bool, int]:
    """8k and 32k are what the aims speak of; time may run out before the others."""
    return (prefix not in (8192, 32768), prefix)


def _model(
    name: str, hidden: int, inner: int, heads: tuple[int, int], vocab: int
) -> list[LinearCase]:
    q_heads, kv_heads = heads
    return [
        LinearCase(name, "qkv", hidden, (q_heads + 2 * kv_heads) * 128),
        LinearCase(name, "o", q_heads * 128, hidden),
        LinearCase(name, "gate, up", hidden, 2 * inner),
        LinearCase(name, "down", inner, hidden),
        LinearCase(name, "head", hidden, vocab, head=True),
    ]


FULL = Grid(
    heads=((32, 8), (28, 4)),
    head_dim=128,
    prefixes=(512, 2048, 8192, 32768, 131072),
    rows=(1, 8, 16, 32, 64, 128),
    linears=(
        *_model("Llama-3.1-8B", 4096, 14336, (32, 8), 128256),
        *_model("Qwen2.5-7B", 3584, 18944, (28, 4), 152064),
    ),
)
# What an interpreter on a CPU gets through.
TINY = Grid(
    heads=((4, 2),),
    head_dim=64,
    prefixes=(20,),
    rows=(1, 3),
    linears=(LinearCase("tiny", "head", 40, 24, head=True),),
)


class Budget:
    """Seconds that may be spent.

    Args:
        seconds: from now on.
        clock: seconds, rising.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._end = clock, clock() + seconds

    @property
    def spent(self) -> bool:
        """Whether nothing is left."""
        return self._clock() >= self._end


def compare_attention(
    measured: Iterable[Mapping[str, Any]], copy_gb_s: float
) -> list[dict[str, Any]]:
    """Rates and ratios of attention times.

    Args:
        measured: rows with heads, prefix, rows, kernel, us and bytes.
        copy_gb_s: the measured copy bandwidth.

    Returns:
        The rows with gb_s, of_copy, to_one_row (their time over that of one row, None where it is
        missing) and, for our own kernels, `to`: their time over that of each other one there.
    """
    found = list(measured)
    times = {(r["heads"], r["prefix"], r["rows"], r["kernel"]): r["us"] for r in found}
    compared = []
    for r in found:
        one = times.get((r["heads"], r["prefix"], 1, r["kernel"]))
        others = {
            kernel: us
            for (heads, prefix, rows, kernel), us in times.items()
            if (heads, prefix, rows) == (r["heads"], r["prefix"], r["rows"])
            and kernel not in OWN_ATTENTION
        }
        own = r["kernel"] in OWN_ATTENTION
        to = {kernel: r["us"] / us for kernel, us in others.items()} if own else {}
        more = {"to_one_row": r["us"] / one if one else None, "to": to}
        compared.append({**r, **_rate(r, copy_gb_s), **more})
    return compared


def compare_linears(
    measured: Iterable[Mapping[str, Any]], copy_gb_s: float
) -> list[dict[str, Any]]:
    """Rates and ratios of products: gb_s, of_copy, to_cublas (time over that of bf16 cuBLAS)."""
    found = list(measured)
    times = {(r["model"], r["matrix"], r["rows"]): r["us"] for r in found if r["kernel"] == CUBLAS}
    compared = []
    for r in found:
        base = times.get((r["model"], r["matrix"], r["rows"]))
        ratio = r["us"] / base if base else None
        compared.append({**r, **_rate(r, copy_gb_s), "to_cublas": ratio})
    return compared


def _rate(row: Mapping[str, Any], copy_gb_s: float) -> dict[str, float]:
    gb_s = row["bytes"] / row["us"] / 1e3
    return {"gb_s": gb_s, "of_copy": gb_s / copy_gb_s}


def aims(attention: Sequence[Mapping[str, Any]], linears: Sequence[Mapping[str, Any]]) -> Any:
    """What was aimed at, and the worst that was measured of it (None: not measured).

    Of attention with 64 rows from 8k on, the better of the forms of a case counts; of linears with
    up to 64 rows the bf16 ones that are large enough (32 MB) for a launch not to count.
    """
    best: dict[tuple[str, int], Mapping[str, Any]] = {}
    for r in attention:
        if r["rows"] == 64 and r["prefix"] >= 8192 and r["kernel"] in OWN_ATTENTION:
            key = r["heads"], r["prefix"]
            if key not in best or r["us"] < best[key]["us"]:
                best[key] = r
    wide = [
        r["of_copy"]
        for r in linears
        if r["kernel"] == "triton bf16" and r["rows"] <= 64 and r["bytes"] >= 32e6
    ]
    to_one = [r["to_one_row"] for r in best.values() if r["to_one_row"] is not None]
    return {
        "attention_of_copy": {
            "aim": 0.8,
            "worst": min((r["of_copy"] for r in best.values()), default=None),
        },
        "attention_to_one_row": {"aim": 1.15, "worst": max(to_one, default=None)},
        "linear_of_copy": {"aim": 0.85, "worst": min(wide, default=None)},
    }
