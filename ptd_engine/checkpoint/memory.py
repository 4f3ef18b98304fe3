"""Telling that memory ran out from what the libraries below raise, each in its own words."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import torch

from ptd_engine.errors import ConfigError

_SAID = (os.strerror(errno.ENOMEM).lower(), "not enough memory", "can't allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of torch, of safetensors or of Python says that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(phrase in str(error).lower() for phrase in _SAID)


def out_of_memory(what: str | Path) -> ConfigError:
    """The error of a model that does not fit; what was allocated for it is free again."""
    return ConfigError(
        f"{what} does not fit into memory. `ptd-engine plan` counts what a model takes; int8 or "
        "int4 weights (dtype), a shorter context (max_seq_len) and several ranks (tensor_parallel) "
        "take less."
    )
