"""The key/value cache of one sequence: static memory, allocated once."""

from __future__ import annotations

import torch
from torch import Tensor

from ptd_engine.errors import ConfigError


class KVCache:
    """Keys and values of all layers, [L, Hkv, S, D], zero at the start.

    Rows below the runner's prefix_len are committed, the rows above hold the current step's tree. A
    head's rows are contiguous, so slicing to the live length is a view.

    Attributes:
        k, v: [num_layers, num_kv_heads, capacity, head_dim].
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        capacity: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        """Allocate the cache.

        Args:
            capacity: rows S; the longest sequence plus the rows of the largest step.

        Raises:
            ConfigError: a size below 1, or more memory than the device gives.
        """
        shape = (num_layers, num_kv_heads, capacity, head_dim)
        if min(shape) < 1:
            raise ConfigError.for_field("KVCache shape", shape, "sizes >= 1")
        try:
            self.k: Tensor = torch.zeros(shape, dtype=dtype, device=device)
            self.v: Tensor = torch.zeros(shape, dtype=dtype, device=device)
        except RuntimeError as error:
            gib = 2 * num_layers * num_kv_heads * capacity * head_dim * dtype.itemsize / 2**30
            raise ConfigError.for_field(
                "max_seq_len",
                capacity,
                "a context whose cache fits in memory",
                f"The cache would need {gib:.2f} GiB on {device} ({error}). Ask for less context.",
            ) from error

    @property
    def capacity(self) -> int:
        """Rows S."""
        return self.k.shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values together."""
        return self.k.nbytes + self.v.nbytes
