from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# max |difference| of logits of unit scale in fp32, two implementations of the same sums
TOLERANCE = 1e-4

# node 0 is the last committed token; siblings stand before and after deep branches
BRANCHING = [-1, 0, 0, 0, 1, 1, 4, 4, 6, 2, 9, 3, 11, 12, 13, 0]


def full_logits(model: Any, tokens: Sequence[int]) -> Tensor:
    """Logits [n, V] of one forward over `tokens`."""
    logits: Tensor = model(torch.tensor([list(tokens)])).logits[0]
    return logits


def decoded_logits(model: Any, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """Logits [len(tokens), V] of a forward over `prompt`, then of `tokens` one by one with a
    cache."""
    state = model(torch.tensor([list(prompt)]), use_cache=True)
    cache_name = "cache" if "cache" in state else "past_key_values"  # renamed in transformers 5
    rows = []
    for token in tokens:
        state = model(torch.tensor([[token]]), use_cache=True, **{cache_name: state[cache_name]})
        rows.append(state.logits[0, 0])
    return torch.stack(rows)


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    """Node ids from the root to `node`."""
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path
