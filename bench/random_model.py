"""Models of published shapes with random weights: what a step takes does not depend on them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ptd_engine.model import CausalLM, ModelConfig, load_model
from ptd_engine.model.weights import expected_shapes

_SCALE = 0.02  # as models are initialised: logits stay finite


class RandomCheckpoint:
    """Weights drawn where they are used; a norm's are ones.

    Args:
        config: as a config.json has it.
        device: where the numbers are drawn.
    """

    def __init__(self, config: Mapping[str, Any], device: torch.device) -> None:
        self.config = dict(config)
        self.generation_config: dict[str, Any] = {}
        self.dtype_name: str | None = "bfloat16"
        self._shapes = expected_shapes(ModelConfig.from_hf(config))
        self._device = device

    def names(self) -> list[str]:
        """See `Checkpoint`."""
        return list(self._shapes)

    def tensor(self, name: str) -> Tensor:
        """See `Checkpoint`: the same numbers at every call."""
        shape = self._shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=torch.bfloat16, device=self._device)
        draw = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        made = torch.empty(shape, dtype=torch.bfloat16, device=self._device)
        return made.normal_(0, _SCALE, generator=draw)


def random_model(config: Mapping[str, Any], device: torch.device, *, max_seq_len: int) -> CausalLM:
    """A model of this shape in bfloat16, ready to run; on a CPU, where it is a rehearsal, by one
    thread."""
    return load_model(
        RandomCheckpoint(config, device),
        dtype="bfloat16",
        device=device,
        max_seq_len=max_seq_len,
        num_threads=None if device.type == "cuda" else 1,
    )
