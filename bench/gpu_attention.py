"""`kernels --gpu`: tree attention. Every result is compared with a reference before it is timed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bench.gpu_cases import AttentionCase
from bench.gpu_rivals import LATER, AttentionInputs, Rival, sdpa
from bench.gpu_timing import Timer
from ptd_engine.errors import PTDError
from ptd_engine.kernels import Ops, StepScratch, select_ops
from ptd_engine.testing.compare import max_abs_diff, tree_mask

DTYPE = torch.bfloat16
_ROUNDINGS = 8  # of the largest value, in float32: another order of summation
_MOST_ROWS = 128  # queries are drawn for: the root's are the same in every tree
_PAD = 16  # rows beyond the live ones to which SDPA's mask is rounded up

Attention = Callable[[AttentionInputs, Tensor], None]
Row = dict[str, Any]


def own_attention(device: torch.device, backends: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """(name, attention over the inputs into `out`), or (name, why there is none)."""
    for name in backends:
        try:
            ops = select_ops(name, device, DTYPE, 128)
        except PTDError as error:
            yield name, str(error)
            continue
        yield name, _by_ops(ops)
        if name == "triton":
            yield "triton dense", _dense


def _by_ops(ops: Ops) -> Attention:
    def attend(inputs: AttentionInputs, out: Tensor) -> None:
        caches = inputs.k, inputs.v, inputs.words, inputs.prefix_len
        ops.tree_attention(inputs.q, *caches, inputs.live, inputs.scale, out, StepScratch())

    return attend


def _dense(inputs: AttentionInputs, out: Tensor) -> None:
    from ptd_engine.triton_kernels.attention_configs import choose_split
    from ptd_engine.triton_kernels.tree_attention import tree_attention

    split = choose_split(inputs.k.shape[1], inputs.k.shape[0])
    caches = inputs.k, inputs.v, inputs.words, inputs.prefix_len, inputs.live, inputs.scale
    tree_attention(inputs.q, *caches, out, split=split, exact=False)


class AttentionBench:
    """Measures cases of one run.

    Args:
        timer: what times.
        device: where.
        own: name -> attention, as `own_attention` gives.
    """

    def __init__(self, timer: Timer, device: torch.device, own: Mapping[str, Attention]) -> None:
        self._timer, self._device, self._own = timer, device, own
        self._caches: tuple[tuple[int, ...], Tensor] | None = None
        self._roots: dict[tuple[str, int, str], Tensor] = {}

    def own(self, case: AttentionCase) -> Iterator[Row]:
        """Our kernels and SDPA: rows with `us`, or with `error` where the result is wrong.

        The forms that promise it must give the root the bits that it has as the only row.
        """
        inputs = self._inputs(case)
        judge = _Judge(inputs)
        yield self._measured(case, "sdpa", sdpa(inputs), judge)
        for name, attend in self._own.items():
            n, heads, dim = inputs.q.shape
            out = torch.full((n, heads * dim), float("nan"), dtype=DTYPE, device=self._device)

            def call(attend: Attention = attend, out: Tensor = out) -> Tensor:
                attend(inputs, out)
                return out

            row = self._measured(case, name, call, judge)
            if name != "triton dense":
                root = self._roots.setdefault((case.heads, case.prefix, name), out[0].clone())
                row["root_bits_equal"] = torch.equal(root, out[0])
            yield row

    def others(self, case: AttentionCase) -> Iterator[Row]:
        """The kernels of others; a row with `reason` where one cannot be had."""
        judges: dict[bool, tuple[AttentionInputs, _Judge]] = {}
        for name, rival in LATER.items():
            if rival.tree not in judges:
                inputs = self._inputs(case, tree=rival.tree)
                judges[rival.tree] = inputs, _Judge(inputs)
            yield self._other(case, name, rival, *judges[rival.tree])

    def _other(
        self, case: AttentionCase, name: str, rival: Rival, inputs: AttentionInputs, judge: _Judge
    ) -> Row:
        try:
            return self._measured(case, name, rival.make(inputs), judge)
        except ImportError as error:
            return {"kernel": name, "reason": f"not installed ({error})"}
        except Exception as error:  # whatever a foreign compiler or kernel raises
            first = (str(error).splitlines() or [""])[0]
            return {"kernel": name, "reason": f"{type(error).__name__}: {first}"[:200]}

    def _measured(
        self, case: AttentionCase, name: str, call: Callable[[], Tensor], judge: _Judge
    ) -> Row:
        row = {"heads": case.heads, "head_dim": case.head_dim, "prefix": case.prefix}
        row |= {"rows": case.rows, "kernel": name}
        error = judge.error(call())
        if error is not None:
            return row | {"error": error}
        timing = self._timer.time(call)
        row |= {"us": timing.us, "us_min": timing.us_min, "captured": timing.captured}
        return row | {"bytes": case.nbytes(DTYPE.itemsize)}

    def _inputs(self, case: AttentionCase, *, tree: bool = True) -> AttentionInputs:
        n, live = case.rows, case.prefix + case.rows
        draw = random.Random(n)
        chain = list(range(-1, n - 1))
        parents = [-1, *(draw.randrange(i) for i in range(1, n))] if tree else chain
        room = case.prefix + _MOST_ROWS + _PAD
        shape = (2, case.kv_heads, room, case.head_dim)
        if self._caches is None or self._caches[0] != shape:
            self._caches = None
            self._caches = shape, _random(*shape, seed=1, device=self._device)
        k, v = self._caches[1].unbind()
        total = -(-live // _PAD) * _PAD
        return AttentionInputs(
            _random(_MOST_ROWS, case.q_heads, case.head_dim, seed=2, device=self._device)[:n],
            k,
            v,
            tree_mask(parents).to(self._device),
            _visible(parents, case.prefix, total).to(self._device),
            torch.tensor([case.prefix], dtype=torch.int32, device=self._device),
            live,
            parents,
        )


def _random(*shape: int, seed: int, device: torch.device) -> Tensor:
    """Normal values, drawn where they are used."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(DTYPE)


def _visible(parents: Sequence[int], prefix: int, total: int) -> Tensor:
    n = len(parents)
    tree = torch.zeros(n, n, dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            tree[node] = tree[parent]
        tree[node, node] = True
    visible = torch.zeros(n, total, dtype=torch.bool)
    visible[:, :prefix] = True
    visible[:, prefix : prefix + n] = tree
    return visible


class _Judge:
    """Tells how wrong an attention's result is, if it is.

    It may be twice as far from float32 as torch's own in the same dtype is.
    """

    def __init__(self, inputs: AttentionInputs) -> None:
        self._reference = _reference(inputs)
        noise = float(self._reference.abs().max()) * _ROUNDINGS * torch.finfo(torch.float32).eps
        self._allowed = 2 * max_abs_diff(sdpa(inputs)(), self._reference) + noise

    def error(self, out: Tensor) -> float | None:
        """None where `out` is right, else its distance from the reference, -1 if not finite."""
        error = max_abs_diff(out, self._reference)
        if not math.isfinite(error):
            return -1.0
        return None if error <= self._allowed else error


def _reference(inputs: AttentionInputs) -> Tensor:
    """[N, Hq D] float32: explicit products, a KV head at a time."""
    n, heads, dim = inputs.q.shape
    kv_heads, total = inputs.k.shape[0], inputs.visible.shape[1]
    group = heads // kv_heads
    out = torch.empty(n, heads, dim, device=inputs.q.device)
    for head in range(kv_heads):
        own = slice(head * group, (head + 1) * group)
        q = inputs.q[:, own].float().reshape(n * group, dim)
        scores = q @ inputs.k[head, :total].float().T * inputs.scale
        scores.view(n, group, total).masked_fill_(~inputs.visible[:, None], float("-inf"))
        out[:, own] = (scores.softmax(-1) @ inputs.v[head, :total].float()).view(n, group, dim)
    return out.view(n, heads * dim)
