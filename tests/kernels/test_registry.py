from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from ptd_engine.errors import ConfigError, UnavailableError
from ptd_engine.kernels import OP_NAMES, Backend, KernelRequest, select_ops, torch_ref
from ptd_engine.kernels.registry import BACKENDS

TORCH = tuple(backend for backend in BACKENDS if backend.name == "torch")


def silu_only(request: KernelRequest) -> Mapping[str, object]:
    return {"silu_mul": torch_ref.silu_mul, "linear": torch_ref.linear}


def needs_wide_heads(request: KernelRequest) -> str | None:
    return None if request.head_dim >= 64 else f"head_dim {request.head_dim} is below 64"


KNOWN = (Backend("fast", needs_wide_heads, silu_only), *TORCH)


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
    known = r"kernels='cudnn'.*'auto', 'cpu', 'triton', 'cuda', 'torch'"
    with pytest.raises(ConfigError, match=known):
        select_ops("cudnn")
    with pytest.raises(ConfigError, match=r"overrides='attention'.*tree_attention"):
        select_ops("auto", overrides={"attention": "torch"})
    with pytest.raises(ConfigError, match=r"overrides\['linear'\]='x'"):
        select_ops("auto", overrides={"linear": "x"})


def test_packing_and_product_come_from_one_backend() -> None:
    with pytest.raises(ConfigError, match="one backend for pack_linear, linear, head_select"):
        select_ops("auto", head_dim=64, backends=KNOWN)


@pytest.mark.parametrize("name", ["cpu:mmx", "torch:avx2"])
def test_unknown_variants_are_listed(name: str) -> None:
    base = name.partition(":")[0]
    with pytest.raises(ConfigError, match=rf"kernels='{name}'.*'{base}"):
        select_ops(name)


def test_quantised_weights_need_a_backend_that_has_them() -> None:
    with pytest.raises(UnavailableError, match=r"int8 weights.*torch: has no int8 weights"):
        select_ops("torch", dtype=torch.bfloat16, weight_format="int8")
    with pytest.raises(UnavailableError, match=r"cpu: int4 weights go with bfloat16"):
        select_ops("cpu", dtype=torch.float32, weight_format="int4")


def test_recording_needs_all_ops_of_a_pass_from_one_backend() -> None:
    assert select_ops("cpu").record is not None
    assert select_ops("cpu", overrides={"silu_mul": "torch"}).record is None
    assert select_ops("torch").record is None


@pytest.mark.parametrize("threads", [0, -1])
def test_the_number_of_threads_is_checked(threads: int) -> None:
    with pytest.raises(ConfigError, match=f"num_threads={threads}"):
        select_ops("cpu", num_threads=threads)


def test_one_variant_of_a_backend_serves_all_ops() -> None:
    with pytest.raises(ConfigError, match=r"cpu:scalar.*one variant.*cpu:auto"):
        select_ops("cpu", overrides={"silu_mul": "cpu:scalar"})
    assert select_ops("cpu:scalar", overrides={"silu_mul": "cpu:scalar"}).record is not None


def test_groups_that_the_cpu_kernels_cannot_attend_with_are_torch_s() -> None:
    assert select_ops("auto", query_group=17, kv_heads=2).choices[0].backend == "torch"
    assert select_ops("auto", query_group=17, kv_heads=1).choices[0].backend == "cpu"
    with pytest.raises(UnavailableError, match=r"up to 16 query heads.*not 17"):
        select_ops("cpu", query_group=17, kv_heads=2)
