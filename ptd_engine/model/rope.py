"""Rotary position embedding as one table of cosines and sines, always computed and held in fp32.

The inverse frequencies of the scaled types come from transformers' own functions, so that a model
sees exactly the rotation it was published with. A table row is a function of the absolute position;
bf16 never touches a position (it cannot hold integers above 256).

The "dynamic" type is the one whose rotation depends on the length of the text: transformers rotates
a prompt of length L with the frequencies for L, and each later token at position p with those for p
+ 1. Keys are stored rotated, so row p of the table is that of length max(L, p + 1), and
`prepare(L)` rewrites the table where that changes a row.
"""

from __future__ import annotations

from copy import copy
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ptd_engine.errors import CheckpointError
from ptd_engine.model.config import ModelConfig


def _hf_view(config: ModelConfig) -> Any:
    """The attributes that transformers' rope functions read, in both of its spellings."""
    rope = config.rope
    parameters = {**rope.params, "rope_type": rope.rope_type, "rope_theta": rope.theta}
    return SimpleNamespace(
        rope_parameters=parameters,
        rope_scaling=parameters,
        rope_theta=rope.theta,
        head_dim=config.head_dim,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_heads,
        max_position_embeddings=config.max_position_embeddings,
        partial_rotary_factor=1.0,
        standardize_rope_params=lambda: None,
    )


def inverse_frequencies(config: ModelConfig, seq_len: Tensor | None = None) -> tuple[Tensor, float]:
    """Return ([..., D/2] fp32 inverse frequencies, attention scaling of cos and sin).

    Args:
        config: the model.
        seq_len: [n, 1] int64 text lengths, read by the "dynamic" type only, which then gives a row
            for each.

    Raises:
        CheckpointError: a parameter of the rope type is missing from the config.
    """
    rope = config.rope
    if rope.rope_type == "default":
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        return 1.0 / (rope.theta**exponent), 1.0
    # Imported here: a second of import time that unscaled models need not pay.
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    try:
        frequencies, scaling = ROPE_INIT_FUNCTIONS[rope.rope_type](
            _hf_view(config), torch.device("cpu"), seq_len=seq_len
        )
    except (KeyError, TypeError) as error:
        raise CheckpointError.for_field(
            "rope_parameters",
            {**rope.params, "rope_type": rope.rope_type},
            f"all parameters of type {rope.rope_type!r}",
            f"Missing or empty: {error}.",
        ) from error
    except (ArithmeticError, ValueError) as error:  # a base of 1 under yarn, a head of two rows
        raise CheckpointError.for_field(
            "rope_parameters",
            {**rope.params, "rope_type": rope.rope_type, "rope_theta": rope.theta},
            f"parameters that type {rope.rope_type!r} can compute with",
            f"It fails with: {error}.",
        ) from error
    return frequencies, float(scaling)


class RopeTable:
    """The cos/sin table of a model.

    Attributes:
        cos_sin: [max_positions, D] fp32 on the device: D/2 cosines, then D/2 sines, attention
            scaling included. Its memory never moves.
    """

    def __init__(
        self, config: ModelConfig, max_positions: int, device: torch.device | str = "cpu"
    ) -> None:
        """Compute the table for positions 0 .. max_positions - 1."""
        self._config = config
        self._dynamic = config.rope.rope_type == "dynamic"
        self._prepared_len = 0
        self._device = torch.device(device)
        self.cos_sin: Tensor = self._rows(max_positions, 0)

    def for_one_sequence(self) -> RopeTable:
        """A table that `prepare` may change without another sequence seeing it: this one, unless
        "dynamic"."""
        if not self._dynamic:
            return self
        own = copy(self)
        own.cos_sin = self.cos_sin.clone()
        return own

    def prepare(self, prompt_len: int) -> None:
        """Make the table right for a text whose prompt has `prompt_len` tokens. Cheap unless
        "dynamic".
        """
        if not self._dynamic:
            return
        # One shape for all computations keeps a row's bits the same whatever came before.
        if not self.suits(prompt_len):
            self.cos_sin.copy_(self._rows(self.cos_sin.shape[0], prompt_len))
        self._prepared_len = prompt_len

    def suits(self, prompt_len: int) -> bool:
        """Whether the table is right for such a prompt as it is, and so are the keys that were
        rotated by it.
        """
        # Rows from the longer of two prompts on follow from their position alone, and within the
        # trained length nothing changes.
        longest = max(prompt_len, self._prepared_len)
        same = not self._dynamic or prompt_len == self._prepared_len
        return same or longest <= self._config.max_position_embeddings

    def _rows(self, count: int, prompt_len: int) -> Tensor:
        if self._device.type == "meta":  # sizes without memory, but the same refusals
            inverse_frequencies(self._config)
            return torch.empty(
                count, self._config.head_dim, dtype=torch.float32, device=self._device
            )
        positions = torch.arange(count)[:, None]
        lengths = (positions + 1).clamp_(min=prompt_len) if self._dynamic else None
        frequencies, scaling = inverse_frequencies(self._config, lengths)
        angles = positions.float() * frequencies
        return (torch.cat((angles.cos(), angles.sin()), dim=-1) * scaling).to(self._device)
