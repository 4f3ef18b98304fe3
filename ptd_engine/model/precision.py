"""What a model computes in: the dtype of activations and cache, and the format of its matrices."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ptd_engine.errors import CheckpointError, ConfigError
from ptd_engine.kernels import WeightFormat, preferred_dtype

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_QUANTISED: dict[str, WeightFormat] = {"int8": "int8", "int4": "int4"}
DTYPE_NAMES = ("auto", *_DTYPES, *_QUANTISED)


@dataclass(frozen=True)
class Precision:
    """A dtype as users name it, taken apart.

    Attributes:
        dtype: of activations and cache, and of matrices in format "float".
        weight_format: how matrices are stored.
    """

    dtype: torch.dtype
    weight_format: WeightFormat = "float"

    @property
    def name(self) -> str:
        """The dtype as users name it."""
        if self.weight_format != "float":
            return self.weight_format
        return str(self.dtype).removeprefix("torch.")


def resolve_precision(
    dtype: str | torch.dtype, stored: str | None, device: torch.device, kernels: str = "auto"
) -> Precision:
    """Return what to compute in.

    Args:
        dtype: one of `DTYPE_NAMES`, or a torch dtype. "int8" and "int4" are formats of the
            matrices; everything else is bfloat16 then. "auto" is the checkpoint's own dtype.
        stored: the checkpoint's dtype name, None if it is quantised: then "auto" is what the
            kernels are best at.
        device, kernels: where and with which kernels the model will run.

    Raises:
        ConfigError: an unknown name.
        CheckpointError: "auto" with a checkpoint in a dtype that cannot be computed in.
    """
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    if dtype in _QUANTISED:
        return Precision(torch.bfloat16, _QUANTISED[dtype])
    if dtype == "auto":
        if stored is None:
            return Precision(preferred_dtype(device, kernels))
        if stored not in _DTYPES:
            raise CheckpointError.for_field(
                "checkpoint dtype", stored, ", ".join(_DTYPES), "Pass dtype= to convert on load."
            )
        return Precision(_DTYPES[stored])
    if dtype not in _DTYPES:
        raise ConfigError.for_field("dtype", dtype, ", ".join(DTYPE_NAMES))
    return Precision(_DTYPES[dtype])
