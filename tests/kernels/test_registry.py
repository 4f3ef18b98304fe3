from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from ptd_engine.errors import ConfigError, UnavailableError
from ptd_engine.kernels import OP_NAMES, Backend, select_ops, torch_ref
from ptd_engine.kernels.registry import BACKENDS


def silu_only(device: torch.device, dtype: torch.dtype, head_dim: int) -> Mapping[str, object]:
    return {"silu_mul": torch_ref.silu_mul, "linear": torch_ref.linear}


def needs_wide_heads(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    return None if head_dim >= 64 else f"head_dim {head_dim} is below 64"


KNOWN = (Backend("fast", needs_wide_heads, silu_only), *BACKENDS)


def test_auto_takes_the_first_that_can_and_says_why() -> None:
    ops = select_ops("auto", head_dim=64, overrides={"linear": "torch"}, backends=KNOWN)
    choices = {c.op: (c.backend, c.reason) for c in ops.describe()}
    assert tuple(choices) == OP_NAMES
    assert choices["silu_mul"] == ("fast", "first choice")
    assert choices["select"] == ("torch", "fast: has no select")
    assert choices["linear"] == ("torch", "asked for")
    narrow = select_ops("auto", head_dim=32, backends=KNOWN)
    reasons = {c.op: c.reason for c in narrow.describe()}
    assert reasons["silu_mul"] == "fast: head_dim 32 is below 64"


def test_a_named_backend_never_falls_back() -> None:
    with pytest.raises(UnavailableError, match=r"pack_linear.*fast: has no pack_linear"):
        select_ops("fast", head_dim=64, backends=KNOWN)
    with pytest.raises(UnavailableError, match=r"silu_mul.*head_dim 32 is below 64"):
        select_ops("auto", head_dim=32, overrides={"silu_mul": "fast"}, backends=KNOWN)


def test_unknown_names_are_listed() -> None:
    with pytest.raises(ConfigError, match=r"kernels='cudnn'.*'auto', 'torch'"):
        select_ops("cudnn")
    with pytest.raises(ConfigError, match=r"overrides='attention'.*tree_attention"):
        select_ops("auto", overrides={"attention": "torch"})
    with pytest.raises(ConfigError, match=r"overrides\['linear'\]='x'"):
        select_ops("auto", overrides={"linear": "x"})


def test_packing_and_product_come_from_one_backend() -> None:
    with pytest.raises(ConfigError, match="one backend for both"):
        select_ops("auto", head_dim=64, backends=KNOWN)
