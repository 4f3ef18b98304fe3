"""The cuda backend as Python calls it, its kernels compiled for the CPU, against plain torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ptd_engine.errors import ConfigError
from ptd_engine.kernels import KernelRequest, cuda_ops, torch_ref
from ptd_engine.kernels.processing import Processing
from ptd_engine.testing.compare import tree_mask, within_reference_noise
from tests.kernels import cuda_host

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
Ops = Mapping[str, Callable[..., None]]


@pytest.fixture(scope="module")
def native() -> ModuleType:
    return cuda_host.host_module()


@pytest.fixture(scope="module")
def ops(native: ModuleType) -> Any:
    return cuda_ops.make_ops(native, "ptd_cuda_host", "CPU")


def make(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def length(value: int) -> Tensor:
    return torch.tensor([value], dtype=torch.int32)


def attend(op: Any, q: Tensor, k: Tensor, v: Tensor, *args: Any) -> Tensor:
    out = torch.full((q.shape[0], q.shape[1] * q.shape[2]), float("nan"), dtype=q.dtype)
    op(q, k, v, *args, q.shape[2] ** -0.5, out)
    return out


@dtypes
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(14, 2, 64), (6, 3, 128), (5, 1, 80)])
def test_attention(dtype: torch.dtype, heads: int, kv_heads: int, dim: int, ops: Ops) -> None:
    prefix, capacity, parents = 131, 160, [-1, 0, 0, 1, 2, 2, 4, 6]
    n = len(parents)
    q, k, v = make(n, heads, dim, dtype=dtype), *make(2, kv_heads, capacity, dim, dtype=dtype)
    k[:, prefix + n :], v[:, prefix + n :] = float("nan"), float("inf")
    for name, first in (("tree_attention", [tree_mask(parents)]), ("causal_attention", [])):
        args = [*first, length(prefix), capacity]
        expected = attend(getattr(torch_ref, name), q, k, v, *args)
        exact = attend(getattr(torch_ref, name), q.double(), k.double(), v.double(), *args)
        assert within_reference_noise(attend(ops[name], q, k, v, *args), expected, exact.float())


def test_a_chain_is_attended_in_parts_and_equals_its_tree(ops: Ops) -> None:
    n, prefix = 150, 40
    q, k, v = make(n, 2, 64), *make(2, 1, prefix + n, 64)
    chain = attend(ops["causal_attention"], q, k, v, length(prefix), prefix + n)
    tree = tree_mask(list(range(-1, n - 1)))
    assert torch.equal(
        chain, attend(ops["tree_attention"], q, k, v, tree, length(prefix), prefix + n)
    )


@dtypes
@pytest.mark.parametrize("normed", [True, False])
def test_rope_kv_write(dtype: torch.dtype, normed: bool, ops: Ops) -> None:
    n, heads, kv_heads, dim = 3, 4, 2, 64
    qkv = make(n, (heads + 2 * kv_heads) * dim, dtype=dtype)
    norms = make(2, dim, dtype=dtype, seed=1) if normed else (None, None)
    angles = make(30, dim // 2, seed=2)
    table = torch.cat([angles.cos(), angles.sin()], -1)
    positions = torch.tensor([9, 0, 29], dtype=torch.int32)

    def run(op: Any, to: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        k, v = torch.full((2, kv_heads, 20, dim), -7.0, dtype=to)
        q = torch.zeros(n, heads, dim, dtype=to)
        cast = [None if x is None else x.to(to) for x in (qkv, *norms)]
        op(*cast, 1e-6, table, positions, length(11), k, v, q)
        return q, k, v

    got, same = run(ops["rope_kv_write"], dtype), run(torch_ref.rope_kv_write, dtype)
    wide = run(torch_ref.rope_kv_write, torch.float32)
    for ours, theirs, exact in zip(got, same, wide, strict=True):
        assert within_reference_noise(ours, theirs, exact)
    assert torch.equal(got[2], same[2])
    assert torch.equal(got[1] == -7, same[1] == -7)


@dtypes
def test_norm_and_activation(dtype: torch.dtype, ops: Ops) -> None:
    for x in (make(4, 100, dtype=dtype), None):
        residual, weight = make(4, 100, dtype=dtype, seed=1), make(100, dtype=dtype, seed=2)
        mine, out, expected = residual.clone(), torch.empty(4, 100).to(dtype), torch.empty(4, 100)
        ops["add_rms_norm"](x, mine, weight, 1e-5, out)
        theirs = expected.to(dtype)
        torch_ref.add_rms_norm(x, residual, weight, 1e-5, theirs)
        assert torch.equal(mine, residual)
        torch_ref.add_rms_norm(None, residual.float(), weight.float(), 1e-5, expected)
        assert within_reference_noise(out, theirs, expected)
    gate_up, out, theirs = make(3, 80, dtype=dtype), *torch.empty(2, 3, 40).to(dtype)
    ops["silu_mul"](gate_up, out)
    torch_ref.silu_mul(gate_up, theirs)
    exact = torch.empty(3, 40)
    torch_ref.silu_mul(gate_up.float(), exact)
    assert within_reference_noise(out, theirs, exact)


@pytest.mark.parametrize("path", [[], [12], [12, 13, 17], [13, 14, 15, 16, 19]])
def test_kv_commit(path: list[int], ops: Ops) -> None:
    before = 12
    sources = torch.tensor([*path, 99999, 99999][:6], dtype=torch.int32)
    mine, theirs = make(2, 3, 2, 20, 24).bfloat16(), make(2, 3, 2, 20, 24).bfloat16()
    ops["kv_commit"](*mine, sources, length(before + len(path)), length(len(path)))
    torch_ref.kv_commit(
        *theirs,
        torch.tensor([*path, *range(before + len(path), before + len(path) + 2)][:6]),
        length(before + len(path)),
        length(len(path)),
    )
    assert torch.equal(mine, theirs)


@dtypes
@pytest.mark.parametrize("mode", ["greedy", "sample", "filter"])
def test_select(dtype: torch.dtype, mode: str, ops: Ops) -> None:
    n, vocab, limit = 6, 1300, 1290
    logits = make(n, vocab, dtype=dtype) * 4
    logits[:, limit:] = float("nan")
    logits[3, 7] = float("nan")
    temperature = torch.tensor([0.7, 0.0, 1.3, 1.0, 0.5, 1.0])
    uniform = torch.tensor([0.1, 0.9, 0.42, 0.3, 0.999, 0.5])
    sampling = torch.tensor([50.0, 0.9, 0.001, 0.0])
    found = []
    for select in (ops["select"], torch_ref.select):
        out = torch.full((n, 5), 7777, dtype=torch.int32)
        select(
            *(logits, temperature, uniform, sampling),
            n_verify=5,
            mode=mode,
            out=out,
            vocab_limit=limit,
        )
        found.append(out)
    mine, theirs = found
    assert torch.equal(mine[:, 0], theirs[:, 0])
    whole = torch.arange(n) != 3  # nothing is said of what else a broken row lists
    wide = logits.float()
    assert torch.equal(
        wide.gather(1, mine[:, 1:].clamp(min=0).long())[whole],
        wide.gather(1, theirs[:, 1:].long())[whole],
    )


def test_select_processes_first(ops: Ops) -> None:
    n, vocab = 4, 300
    found = []
    for select in (ops["select"], torch_ref.select):
        processing = Processing(
            token_ids=torch.tensor([5, 6, 7, 8], dtype=torch.int32),
            mask=tree_mask([-1, 0, 1, 1]),
            positions=torch.arange(4, dtype=torch.int32),
            counts=torch.zeros(2, vocab, dtype=torch.int32).index_fill_(1, torch.tensor([6]), 2),
            penalties=torch.tensor([1.5, 0.5, 0.25, 0.0]),
            bias_ids=torch.tensor([3, -1], dtype=torch.int32),
            bias_values=torch.tensor([1.5, 0.0]),
            forbidden_ids=torch.tensor([9], dtype=torch.int32),
            free_from=length(100),
            logprob_ids=torch.zeros(n, 4, dtype=torch.int32),
            logprob_values=torch.zeros(n, 4),
        )
        out = torch.zeros(n, 3, dtype=torch.int32)
        select(
            *(
                make(n, vocab),
                torch.ones(n),
                torch.full((n,), 0.6),
                torch.tensor([0.0, 0.95, 0, 0]),
            ),
            n_verify=3,
            mode="filter",
            out=out,
            processing=processing,
        )
        found.append((out, processing.logprob_ids, processing.logprob_values))
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)


class Seen(TorchDispatchMode):
    """Names of the operators that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_kernels_are_operators_of_torch(ops: Ops) -> None:
    with Seen() as seen:
        ops["silu_mul"](make(2, 16), torch.empty(2, 8))
    assert "ptd_cuda_host.silu_mul.default" in seen.names
    meta = torch.empty(2, 8, device="meta")
    ops["silu_mul"](torch.empty(2, 16, device="meta"), meta)  # what compilers ask, without data


def test_tensors_that_do_not_fit_are_named(ops: Ops) -> None:
    k, v = make(2, 1, 70, 64)
    q, mask, out = make(1, 1, 64), tree_mask([-1]), torch.empty(1, 64)
    with pytest.raises(ConfigError, match=r"tree_attention: q=.*contiguous"):
        ops["tree_attention"](make(1, 1, 128)[..., ::2], k, v, mask, length(3), 70, 1.0, out)
    with pytest.raises(ConfigError, match=r"tree_attention: dtypes=.*one floating dtype"):
        ops["tree_attention"](q.half(), k, v, mask, length(3), 70, 1.0, out)
    with pytest.raises(ConfigError, match=r"prefix_len=.*int32"):
        ops["tree_attention"](q, k, v, mask, length(3).long(), 70, 1.0, out)
    with pytest.raises(ConfigError, match=r"strides of the cache.*16 bytes"):
        ops["tree_attention"](q, make(1, 70, 65)[..., :64], v, mask, length(3), 70, 1.0, out)
    with pytest.raises(ConfigError, match=r"head_dim=72.*64, 80, 96, 128, 256.*kernels='triton'"):
        ops["tree_attention"](
            make(1, 1, 72), *make(2, 1, 70, 72), mask, length(3), 70, 1.0, torch.empty(1, 72)
        )
    fp8 = k.to(torch.float8_e4m3fn)
    with pytest.raises(ConfigError, match=r"float8_e4m3fn.*read by kernels='triton'"):
        ops["tree_attention"](q, fp8, fp8, mask, length(3), 70, 1.0, out)
    for bad, message in (
        ({"mask": mask.int()}, r"mask=.*\(1, 1\) of torch.int64"),
        ({"mask": mask.expand(1, 2).contiguous()}, r"mask=.*\(1, 1\)"),
        ({"bound": 71}, "kv_bound=71.*1 to 70"),
        ({"bound": 0}, "kv_bound=0"),
        ({"out": make(1, 65)}, r"out=.*\(1, 64\)"),
        ({"q": make(257, 1, 64), "out": make(257, 64)}, "rows of a tree=257.*at most 256"),
        ({"q": make(1, 3, 64), "k": make(2, 70, 64), "v": make(2, 70, 64)}, r"heads=\(3, 2\)"),
    ):
        given = {"q": q, "k": k, "v": v, "mask": mask, "bound": 70, "out": out, **bad}
        with pytest.raises(ConfigError, match=message):
            ops["tree_attention"](
                *(given["q"], given["k"], given["v"], given["mask"]),
                *(length(3), given["bound"], 1.0, given["out"]),
            )


@pytest.mark.parametrize(
    ("width", "vocab", "message"),
    [
        (1, 2**18 + 1, "vocab_limit=262145.*1 to 262144.*kernels='triton'"),
        (258, 600, "successors=257.*0 to 256"),
        (5, 3, "successors=4.*0 to 3"),
    ],
)
def test_what_select_does_not_have_is_named(width: int, vocab: int, message: str, ops: Ops) -> None:
    one = torch.ones(1)
    out = torch.zeros(1, width, dtype=torch.int32)
    with pytest.raises(ConfigError, match=message):
        ops["select"](
            torch.zeros(1, vocab), one, one, torch.zeros(4), n_verify=1, mode="greedy", out=out
        )


def test_a_step_without_rows_is_done_at_once(ops: Ops) -> None:
    none, cache = torch.zeros(0, dtype=torch.int32), make(2, 1, 9, 64)
    mask, before = torch.zeros(0, 0, dtype=torch.int64), cache.clone()
    q, out = make(0, 2, 64), make(0, 128)
    ops["tree_attention"](q, *cache, mask, length(3), 9, 1.0, out)
    ops["causal_attention"](q, *cache, length(3), 9, 1.0, out)
    ops["rope_kv_write"](
        make(0, 256), None, None, 1e-5, make(5, 64), none, length(2), *cache, make(0, 2, 64)
    )
    ops["add_rms_norm"](None, make(0, 8), make(8), 1e-5, make(0, 8))
    ops["silu_mul"](make(0, 16), make(0, 8))
    ops["select"](
        *(make(0, 16), make(0), make(0), torch.zeros(4)),
        n_verify=0,
        mode="filter",
        out=torch.zeros(0, 1, dtype=torch.int32),
    )
    assert torch.equal(cache, before)


def test_probe_says_why() -> None:
    def reason(device: str = "cuda", dtype: torch.dtype = torch.bfloat16, **more: Any) -> str:
        request = KernelRequest(torch.device(device), dtype, **{"head_dim": 128, **more})
        return (cuda_ops.unsupported if device == "cuda" else cuda_ops.probe)(request) or ""

    assert reason() == ""
    assert "not on cpu" in reason("cpu")
    assert "not in torch.float64" in reason(dtype=torch.float64)
    assert "64, 80, 96, 128, 256, not 48" in reason(head_dim=48)
    assert "no int8 weights" in reason(weight_format="int8")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which the kernels may use")
def test_probe_without_a_gpu() -> None:
    request = KernelRequest(torch.device("cuda"), torch.bfloat16, 128)
    assert cuda_ops.probe(request) in (
        "built without CUDA: install with nvcc and PTD_CUDA=1",
        "no CUDA device was found",
    )
