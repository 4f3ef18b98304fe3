"""Whether the Triton kernels can serve, and their loading: Triton is optional, imported when asked.

Importing it takes a while, and it decides at its import whether kernels are compiled or interpreted
(TRITON_INTERPRET): nothing here does so before a request names a device that it could run on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from importlib.util import find_spec
from typing import Any

import torch

from ptd_engine.errors import ConfigError
from ptd_engine.kernels.request import KernelRequest

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_HEAD_DIMS = (16, 256)
_MOST_FLOAT32 = 128
# Ops that launch a kernel on the caller's tensors.
_LAUNCHES = (
    *("embed", "linear", "add_rms_norm", "rope_kv_write", "tree_attention"),
    *("causal_attention", "silu_mul", "select", "kv_commit"),
)


def probe(request: KernelRequest) -> str | None:
    """None where these kernels can serve, else the reason why not."""
    if find_spec("triton") is None:
        return "triton is not installed: pip install 'ptd-engine[triton]'"
    from ptd_engine.triton_kernels import target

    if (reason := target.unavailable(request.device)) is not None:
        return str(reason)
    if request.dtype not in _DTYPES:
        return f"computes in bfloat16, float16 and float32, not in {request.dtype}"
    if request.weight_format != "float" and request.dtype == torch.float32:
        return f"{request.weight_format} weights go with bfloat16 and float16, not with float32"
    least, most = _HEAD_DIMS
    if request.head_dim % 2 != 0 or not least <= request.head_dim <= most:
        return f"head_dim must be an even number from {least} to {most}, not {request.head_dim}"
    if request.dtype == torch.float32 and request.head_dim > _MOST_FLOAT32:
        # Its attention would not fit the registers.
        return (
            f"float32 goes with a head_dim of at most {_MOST_FLOAT32}, not {request.head_dim}: "
            "take dtype='bfloat16', or kernels='cuda', which has it"
        )
    return None


def auto_probe(request: KernelRequest) -> str | None:
    """The reason why `auto` passes these kernels over although they could serve."""
    if request.device.type != "cuda":
        return f"on {request.device.type} they are interpreted, which is for tests"
    return None


def load(request: KernelRequest) -> Mapping[str, object]:
    """The ops by name."""
    from ptd_engine.kernels.triton_ops import load as load_ops

    found = dict(load_ops(request))
    for name in _LAUNCHES:
        found[name] = _named_errors(found[name])
    return found


def _named_errors(op: Any) -> Callable[..., None]:
    """The op; what its launcher refuses is the caller's mistake. The kernels know no PTDError."""
    from ptd_engine.triton_kernels.target import LaunchError

    @wraps(op)
    def call(*arguments: object, **options: object) -> None:
        try:
            op(*arguments, **options)
        except LaunchError as error:
            raise ConfigError(str(error)) from error

    return call
