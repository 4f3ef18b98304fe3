"""A checkpoint as one rank sees it: a smaller model, of which it reads only its own part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ptd_engine.checkpoint import Checkpoint, SafetensorsCheckpoint
from ptd_engine.errors import CheckpointError
from ptd_engine.model.weights import expected_shapes
from ptd_engine.tensor_parallel.partition import Cut, Partition


class ShardedCheckpoint:
    """Implements the `Checkpoint` protocol for a rank.

    Of safetensors files only the rank's part is read; a GGUF tensor is dequantised as a whole and
    then cut.
    """

    def __init__(self, whole: Checkpoint, partition: Partition) -> None:
        self._whole = whole
        self._partition = partition
        self._shapes = expected_shapes(partition.config)

    @property
    def config(self) -> dict[str, Any]:
        """The config of the rank's smaller model."""
        return self._partition.local(self._whole.config)

    @property
    def generation_config(self) -> dict[str, Any]:
        """See `Checkpoint`."""
        return self._whole.generation_config

    @property
    def dtype_name(self) -> str | None:
        """See `Checkpoint`."""
        return self._whole.dtype_name

    def names(self) -> list[str]:
        """See `Checkpoint`."""
        return self._whole.names()

    def tensor(self, name: str) -> Tensor:
        """This rank's part of a tensor.

        Raises:
            CheckpointError: the whole tensor has another shape than the config says.
        """
        cut = self._partition.cut(name)
        if cut is None:
            tensor = self._whole.tensor(name)
            return torch.zeros_like(tensor) if self._partition.is_zero(name) else tensor
        if isinstance(self._whole, SafetensorsCheckpoint):
            self._check_shape(name, self._whole.shape(name))
            return self._whole.part(name, cut.dim, cut.start, cut.stop)
        tensor = self._whole.tensor(name)
        self._check_shape(name, tuple(tensor.shape))
        return _copied(tensor, cut)

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        if shape != self._shapes[name]:
            raise CheckpointError.for_field(
                f"shape of {name}",
                list(shape),
                f"{list(self._shapes[name])}",
                "config.json does not belong to these weights.",
            )


def _copied(tensor: Tensor, cut: Cut) -> Tensor:
    """A copy, so that the rest of the tensor is freed."""
    return tensor.narrow(cut.dim, cut.start, cut.stop - cut.start).clone()
