"""Comparisons with a reference, and the masks and step runner they need."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ptd_engine.kv_cache import KVCache
from ptd_engine.model.forward import CausalLM, ForwardBuffers


def tree_mask(parents: Sequence[int], rows: int | None = None) -> Tensor:
    """Return the ancestor mask of a tree as [rows, ceil(rows / 64)] int64.

    Args:
        parents: parent of each node, -1 for a node without one; parents come first.
        rows: pads the mask to this many rows, each of which sees itself only.
    """
    rows = len(parents) if rows is None else rows
    words = (rows + 63) // 64
    bits: list[int] = []
    for node in range(rows):
        parent = parents[node] if node < len(parents) else -1
        bits.append((bits[parent] if parent >= 0 else 0) | 1 << node)
    packed = [[(b >> 64 * w) & (1 << 64) - 1 for w in range(words)] for b in bits]
    signed = [[value - (1 << 64) if value >> 63 else value for value in row] for row in packed]
    return torch.tensor(signed, dtype=torch.int64)


def tree_depths(parents: Sequence[int]) -> list[int]:
    """Return hops from each node to the root of its tree."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return depths


def max_abs_diff(a: Tensor, b: Tensor) -> float:
    """Return max |a - b| in fp64; NaN if either holds one."""
    return float((a.double() - b.double()).abs().max())


def top2_gap(logits: Tensor) -> Tensor:
    """Return the difference of the two largest logits of each row, fp64: a near-tie explains a
    divergence.
    """
    top = logits.double().topk(2, dim=-1).values
    return top[..., 0] - top[..., 1]


def within_reference_noise(out: Tensor, same_dtype: Tensor, reference: Tensor) -> bool:
    """Whether `out` is about as near to the fp32 `reference` as a plain implementation in its dtype
    is.

    The rule: max|out - reference| <= 2 max|same_dtype - reference| + one rounding of the
    reference's largest value in fp32, so that no tolerance is a magic number.
    """
    noise = float(reference.abs().max()) * 2.0**-22
    return max_abs_diff(out, reference) <= 2 * max_abs_diff(same_dtype, reference) + noise


class StepRunner:
    """Runs steps of a model on one sequence by hand: no drafter, no bucket, no sampling.

    Attributes:
        cache: the sequence's keys and values.
        length: committed tokens.
    """

    def __init__(self, model: CausalLM, max_seq_len: int = 128, max_rows: int = 96) -> None:
        """Allocate the cache and the buffers."""
        cfg = model.config
        self.model = model
        self.cache = KVCache(
            cfg.num_layers,
            cfg.num_kv_heads,
            max_seq_len + max_rows,
            cfg.head_dim,
            model.dtype,
            model.device,
        )
        self.buffers = ForwardBuffers.allocate(cfg, max_rows, model.dtype, model.device)
        self.length = 0

    def step(
        self,
        tokens: Sequence[int],
        parents: Sequence[int] | None = None,
        *,
        pad_to: int = 0,
        pad_token: int = 0,
        slack: int = 0,
        exact_bound: bool = False,
    ) -> Tensor:
        """Run `tokens` after the committed ones and return their logits [n, V]; commits nothing.

        Args:
            tokens: the rows.
            parents: tree structure (-1: hangs below the committed prefix), or None for a chain run
                causally.
            pad_to: rows of the step, if more than len(tokens).
            pad_token: what padding rows hold.
            slack: dead cache rows below kv_bound.
            exact_bound: passed on; needs slack 0.
        """
        n = max(len(tokens), pad_to)
        depths = list(range(n)) if parents is None else tree_depths(parents)
        depths += [0] * (n - len(depths))
        device = self.model.device
        padded = [*tokens, *[pad_token] * (n - len(tokens))]
        hidden = self.model.forward(
            torch.tensor(padded, dtype=torch.int32, device=device),
            torch.tensor([self.length + d for d in depths], dtype=torch.int32, device=device),
            None if parents is None else tree_mask(parents, n).to(device),
            torch.tensor([self.length], dtype=torch.int32, device=device),
            self.length + n + slack,
            self.cache,
            self.buffers,
            exact_bound,
        )
        out = torch.empty(n, self.model.config.vocab_size, dtype=self.model.dtype, device=device)
        return self.model.logits(hidden, out)[: len(tokens)]

    def prefill(self, tokens: Sequence[int], chunk: int = 0) -> Tensor:
        """Run and commit `tokens`, `chunk` at a time (0: all at once); returns their logits [n,
        V].
        """
        self.model.rope.prepare(len(tokens))
        chunk = chunk or len(tokens)
        parts = []
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            parts.append(self.step(part))
            self.length += len(part)
        return torch.cat(parts)
