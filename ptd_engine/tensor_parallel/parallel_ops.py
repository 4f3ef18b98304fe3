"""The operations of a rank's forward pass: those of a backend, and what joins the ranks.

A layer needs the others twice: behind `o_proj` and behind `down_proj`, where each rank has a sum
over its own inputs. Both are plain `linear` calls of `CausalLM.forward`, told by the type of their
weight. Fused layers and recorded passes know nothing of other ranks, so neither is used.

The output matrix is cut by token ids. Rank 0 sends the hidden states whose logits it wants, gets
the ranks' columns in their order, and chooses tokens as one rank alone would.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from ptd_engine.kernels import LinearWeight, Ops
from ptd_engine.model import CausalLM
from ptd_engine.tensor_parallel.commands import Command, Kind, send
from ptd_engine.tensor_parallel.group import Group
from ptd_engine.tensor_parallel.partition import head_rows


@dataclass(frozen=True)
class _Part(LinearWeight):
    """A packed weight of which the other ranks hold the rest."""

    @classmethod
    def of(cls, weight: LinearWeight) -> Self:
        return cls(**{field.name: getattr(weight, field.name) for field in fields(LinearWeight)})


class InputPart(_Part):
    """Some columns of the matrix: the ranks' products add up."""


class VocabularyPart(_Part):
    """Some rows of the output matrix: the ranks' logits stand side by side."""


def join_ranks(model: CausalLM, group: Group) -> CausalLM:
    """The rank's model, with ops that join the ranks; its weights are a `ShardedCheckpoint`'s."""
    weights = model.weights
    layers = tuple(
        replace(layer, o=InputPart.of(layer.o), down=InputPart.of(layer.down))
        for layer in weights.layers
    )
    head = VocabularyPart.of(weights.lm_head)
    return replace(
        model,
        weights=replace(weights, layers=layers, lm_head=head),
        ops=_ops(model.ops, group, model.config.vocab_size),
    )


def _ops(base: Ops, group: Group, vocab_size: int) -> Ops:
    def linear(x: Tensor, weight: LinearWeight, out: Tensor) -> None:
        if isinstance(weight, VocabularyPart):
            _project_all(base, group, vocab_size, x, weight, out)
            return
        base.linear(x, weight, out)
        if isinstance(weight, InputPart):
            group.all_reduce(out)

    def head_select(
        hidden: Tensor,
        weight: LinearWeight,
        logits: Tensor,
        temperature: Tensor,
        uniform: Tensor,
        sampling: Tensor,
        **rest: Any,
    ) -> None:
        linear(hidden, weight, logits)
        base.select(logits, temperature, uniform, sampling, **rest)

    def no_select(*_: object, **__: object) -> None:
        """Rank 0 asks for logits by a command of its own, and alone chooses."""

    return replace(
        base,
        linear=linear,
        head_select=head_select if group.rank == 0 else no_select,
        record=None,
        fused=None,
        shares_embedding=False,
    )


def _project_all(
    base: Ops, group: Group, vocab_size: int, hidden: Tensor, weight: LinearWeight, out: Tensor
) -> None:
    """All ranks' logits of hidden [N, H] on rank 0, into out [N, V]."""
    with group.turn:
        send(group, Command(Kind.PROJECT, a=hidden.shape[0]))
        hidden = hidden.contiguous()
        group.broadcast(hidden)
        own = project_part(base, group, vocab_size, hidden, weight, out.dtype)
        parts = [torch.empty_like(own) for _ in range(group.size)]
        group.gather(own, parts)
    for rank, part in enumerate(parts):
        ids = head_rows(vocab_size, rank, group.size)
        out[:, ids.start : ids.stop] = part[:, : len(ids)]


def project_part(
    base: Ops,
    group: Group,
    vocab_size: int,
    hidden: Tensor,
    weight: LinearWeight,
    dtype: torch.dtype,
) -> Tensor:
    """This rank's logits of hidden [N, H], [N, ceil(V / ranks)]: all ranks' have one shape."""
    width = -(-vocab_size // group.size)
    own = torch.empty(hidden.shape[0], weight.out_features, dtype=dtype, device=hidden.device)
    base.linear(hidden, weight, own)
    return pad(own, (0, width - weight.out_features)).contiguous()
