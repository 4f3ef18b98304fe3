"""What rank 0 tells the others to do: a few numbers, and what belongs to them."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import IntEnum

import torch
from torch import Tensor

from ptd_engine.tensor_parallel.group import Group


class Kind(IntEnum):
    """The commands; what `Command.numbers` holds for each.

    OPEN: max_seq_len, max_nodes, max_path. Make the memory of a runner.
    PREFILL: start, prompt_len. The payload is int32 token ids.
    STEP: rows. The payload is the packed plan.
    PROJECT: rows. Hidden states follow; compute this rank's logits of them.
    STOP: the end.
    """

    OPEN = 0
    PREFILL = 1
    STEP = 2
    PROJECT = 3
    STOP = 4


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        kind: which one.
        runner: whose memory it is about.
        a, b, c: its numbers.
        payload: bytes that follow.
    """

    kind: Kind
    runner: int = 0
    a: int = 0
    b: int = 0
    c: int = 0
    payload: int = 0


def send(group: Group, command: Command, payload: Tensor | None = None) -> None:
    """Tell the other ranks, on rank 0; payload is uint8 [command.payload] on the CPU."""
    group.broadcast(torch.tensor(astuple(command), dtype=torch.int64), command=True)
    if payload is not None and command.payload:
        group.broadcast(payload)


def receive(group: Group) -> tuple[Command, Tensor]:
    """The next command and its payload, uint8 on the CPU; waits as long as it takes."""
    numbers = torch.zeros(6, dtype=torch.int64)
    group.broadcast(numbers, command=True)
    kind, *rest = numbers.tolist()
    command = Command(Kind(kind), *rest)
    payload = torch.empty(command.payload, dtype=torch.uint8)
    if command.payload:
        group.broadcast(payload)
    return command, payload
