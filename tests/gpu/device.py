"""What the tests on a GPU share: the device, the backends, sizes for a GPU and a rehearsal."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from ptd_engine.errors import UnavailableError
from ptd_engine.kernels import Backend, Ops, cuda_ops, select_ops

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def sizes(on_gpu: list[Any], rehearsed: list[Any]) -> list[Any]:
    """The values of a parameter: few and small ones where kernels are interpreted."""
    return on_gpu if ON_GPU else rehearsed


@cache
def _host_backend() -> Backend:
    from tests.kernels import cuda_host

    made = cuda_ops.make_ops(cuda_host.host_module(), "ptd_cuda_rehearsal", "CPU")
    return Backend("cuda", cuda_ops.unsupported, lambda request: made)


def get_ops(name: str, dtype: torch.dtype, head_dim: int, **options: Any) -> Ops:
    """Ops of a backend on the device of these tests; skips with the reason if there are none."""
    if name == "cuda" and not ON_GPU:
        options["backends"] = [_host_backend()]
    try:
        return select_ops(name, DEVICE, dtype, head_dim, **options)
    except UnavailableError as error:
        pytest.skip(str(error))


def make(*shape: int, dtype: torch.dtype = FP32, seed: int = 0) -> Tensor:
    """Normal values, the same on every device."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cpu").to(DEVICE).to(dtype)


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)
