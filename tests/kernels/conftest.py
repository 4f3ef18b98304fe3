from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# As in tests/conftest.py: without a GPU the kernels are interpreted, on CPU tensors.
KERNEL_DEVICE = torch.device("cuda" if Path("/dev/nvidiactl").exists() else "cpu")


@pytest.fixture
def on_kernel_device() -> Iterator[torch.device]:
    """New tensors are made where the Triton kernels run."""
    with KERNEL_DEVICE:
        yield KERNEL_DEVICE


@pytest.fixture
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of 128 inputs are split already: an interpreted one of 2,048 takes seconds."""
    weights = pytest.importorskip("ptd_engine.triton_kernels.linear_weights")
    monkeypatch.setattr(weights, "LEAST_DEPTH", 32)
