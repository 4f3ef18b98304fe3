"""The "triton" backend: who may use it, its fused layer, and a tiny model from prompt to text."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is an optional package: pip install triton")

from engine.conftest import finish, make_engine

from kernels.conftest import KERNEL_DEVICE
from kernels.test_pointwise_and_cache import NoHostSync
from ptd_engine.config import PTDConfig, SamplingParams
from ptd_engine.errors import ConfigError, UnavailableError
from ptd_engine.kernels import KernelRequest, Ops, StepScratch, select_ops, triton_backend
from ptd_engine.model import CausalLM, load_model
from ptd_engine.testing import tiny
from ptd_engine.testing.compare import (
    StepRunner,
    max_abs_diff,
    tree_mask,
    within_reference_noise,
)
from ptd_engine.triton_kernels import target

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
INTERPRETED = bool(target.INTERPRETED.value)
CONTEXT = 64


def make(*shape: int, dtype: torch.dtype = FP32, seed: int = 0) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    values = torch.randn(shape, generator=generator, device="cpu")
    return values.to(torch.get_default_device()).to(dtype)


def ops_for(dtype: torch.dtype, head_dim: int = 16, **options: Any) -> Ops:
    return select_ops("triton", KERNEL_DEVICE, dtype, head_dim, **options)


def request(
    device: torch.device = KERNEL_DEVICE,
    dtype: torch.dtype = BF16,
    head_dim: int = 64,
    **options: Any,
) -> KernelRequest:
    return KernelRequest(device, dtype, head_dim, **options)


def test_what_it_serves() -> None:
    assert triton_backend.probe(request()) is None
    assert triton_backend.probe(request(weight_format="int4")) is None
    for refused, reason in (
        (request(torch.device("meta")), "cpu tensors only" if INTERPRETED else "not on meta"),
        (request(dtype=torch.float64), "not in torch.float64"),
        (request(dtype=FP32, weight_format="int8"), "int8 weights go with bfloat16 and float16"),
        (request(head_dim=8), "from 16 to 256, not 8"),
        (request(head_dim=65), "even number"),
        (request(head_dim=512), "not 512"),
        (
            request(dtype=FP32, head_dim=256),
            "at most 128, not 256: take dtype='bfloat16', or kernels",
        ),
    ):
        assert reason in (triton_backend.probe(refused) or "")


def test_a_wide_head_in_float32_names_the_kernels_that_have_it() -> None:
    with pytest.raises(UnavailableError, match=r"head_dim 256.*not 256.*kernels='cuda', which has"):
        ops_for(FP32, 256)


@pytest.mark.usefixtures("on_kernel_device")
def test_what_no_kernel_serves_is_a_mistake_with_a_name() -> None:
    ops, zero = ops_for(FP32), torch.zeros(1, dtype=torch.int32)
    q, cache, out = make(300, 1, 16), make(1, 300, 16), torch.empty(300, 16)
    with pytest.raises(ConfigError, match=r"mask is \(300, 5\) of .*N up to 256"):
        ops.tree_attention(q, cache, cache, tree_mask([-1] * 300), zero, 300, 1.0, out)
    with pytest.raises(ConfigError, match=r"out is \(300, 16\), allowed: \[N, Hq D\]"):
        ops.causal_attention(q[:2], cache, cache, zero, 300, 1.0, out)
    mask, fp8 = tree_mask([-1]).int().to(KERNEL_DEVICE), cache.to(torch.float8_e4m3fn)
    with pytest.raises(ConfigError, match=r"of torch.int32, allowed: .* of torch.int64"):
        ops.tree_attention(q[:1], cache, cache, mask, zero, 300, 1.0, out[:1])
    with pytest.raises(ConfigError, match="v_cache is torch.float8_e4m3fn, allowed: k_cache's"):
        ops.causal_attention(q[:1], cache, fp8, zero, 300, 1.0, out[:1])
    apart = make(3, 32)[:, ::2]
    for name, arguments in (
        ("embed", (zero, ops.pack_embed(make(3, 16), tied=False), apart[:1])),
        ("linear", (apart, ops.pack_linear(make(4, 16), None), out[:3, :4])),
        ("add_rms_norm", (apart, out[:3], make(16), 1e-5, out[:3])),
        ("silu_mul", (apart, out[:3, :8])),
    ):
        with pytest.raises(ConfigError, match=rf"Triton {name}: strides of \w+ are \(32, 2\)"):
            getattr(ops, name)(*arguments)
    with pytest.raises(ConfigError, match=r"Triton select: strides of logits are \(32, 2\)"):
        ops.select(
            *(apart, out[:, 0], out[:, 0], torch.zeros(4)),
            n_verify=0,
            mode="greedy",
            out=torch.zeros(3, 1, dtype=torch.int32),
        )
    with pytest.raises(ConfigError, match="keys and values lie apart"):
        ops.kv_commit(cache[None], cache[None, :, ::2], zero, zero, zero)


def test_without_triton_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_backend, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"triton is not installed: pip install"):
        ops_for(FP32)


@pytest.mark.skipif(not INTERPRETED, reason="needs the interpreter: TRITON_INTERPRET=1")
def test_auto_leaves_the_interpreter_alone() -> None:
    ops = select_ops("auto")
    assert "triton" not in {choice.backend for choice in ops.choices}
    assert ops.fused is None


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU machine both are the same")
def test_older_gpus_and_other_makers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "INTERPRETED", type(target.INTERPRETED)(False))
    cuda = request(torch.device("cuda"))
    assert "not on cpu" in (triton_backend.probe(request(torch.device("cpu"))) or "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "needs compute capability 8.0, cuda has 7.5" in (triton_backend.probe(cuda) or "")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert triton_backend.probe(cuda) is None
    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert "NVIDIA" in (triton_backend.probe(cuda) or "")


def test_matrices_of_torch_beside_the_other_kernels() -> None:
    to_torch = dict.fromkeys(("pack_linear", "linear", "head_select"), "torch")
    ops = ops_for(BF16, overrides=to_torch)
    assert ops.fused is None and ops.logits_dtype is None
    assert ops_for(BF16).fused is not None
    with pytest.raises(ConfigError, match="one backend for pack_linear, linear, head_select"):
        ops_for(BF16, overrides={"linear": "torch"})


def test_weights_of_another_dtype_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Triton kernels for torch.bfloat16.*torch.float32"):
        ops_for(BF16).pack_linear(torch.zeros(2, 2, device=KERNEL_DEVICE), None)


class Layer:
    """Weights and inputs of a small layer: Hq 3, Hkv 2, biases, head norms."""

    def __init__(self, ops: Ops, dtype: torch.dtype, hidden: int, head_dim: int) -> None:
        self.ops, self.dtype, self.head_dim = ops, dtype, head_dim
        size, inner = 7 * head_dim, 70
        scale = hidden**-0.5
        self.qkv = (make(size, hidden, seed=1) * scale, make(size, seed=2))
        self.gate_up = (make(2 * inner, hidden, seed=3) * scale, make(2 * inner, seed=4))
        self.o = (make(hidden, 3 * head_dim, seed=5) * scale, make(hidden, seed=6))
        self.norm, self.head_norms = make(hidden, seed=7), make(2, head_dim, seed=8)
        self.table = make(30, head_dim, seed=9)
        self.inner = inner

    def run(
        self, attended: Tensor, residual: Tensor, *, fused: bool, position: int = 11
    ) -> dict[str, Tensor]:
        """From attended [N, Hq D] through o, the MLP's first half and the next projection."""
        ops, n, dtype = self.ops, residual.shape[0], self.dtype
        residual, shared = residual.to(dtype, copy=True), StepScratch()
        weights = [
            ops.pack_linear(w.to(dtype), b.to(dtype)) for w, b in (self.qkv, self.gate_up, self.o)
        ]
        qkv, gate_up, o = weights
        norm, norms = self.norm.to(dtype), self.head_norms.to(dtype).unbind()
        positions = torch.arange(n, dtype=torch.int32) + position
        places = (self.table, positions, torch.tensor([4], dtype=torch.int32))
        caches = torch.zeros(2, 2, 4 + n + 1, self.head_dim, dtype=dtype)
        q = torch.empty(n, 3, self.head_dim, dtype=dtype)
        activated = torch.empty(n, self.inner, dtype=dtype)
        x, hidden = attended.to(dtype), residual.shape[1]
        if fused:
            assert ops.fused is not None
            at = (*norms, *places, *caches.unbind())
            ops.fused.norm_qkv(residual, norm, 1e-5, qkv, *at, q, shared)
            first = q.clone()
            ops.fused.linear_add(x, o, residual, shared)
            ops.fused.norm_gate_up(residual, norm, 1e-5, gate_up, activated, shared)
            ops.fused.linear_add(x, o, residual, shared)
            ops.fused.norm_qkv(residual, norm, 1e-5, qkv, *at, q, shared)
        else:
            normed, branch = torch.empty_like(residual), torch.empty(n, hidden, dtype=dtype)
            projected = torch.empty(n, 7 * self.head_dim, dtype=dtype)
            pair = torch.empty(n, 2 * self.inner, dtype=dtype)
            ops.add_rms_norm(None, residual, norm, 1e-5, normed)
            ops.linear(normed, qkv, projected)
            at = (*norms, 1e-5, *places, *caches.unbind())
            ops.rope_kv_write(projected, *at, q)
            first = q.clone()
            ops.linear(x, o, branch)
            ops.add_rms_norm(branch, residual, norm, 1e-5, normed)
            ops.linear(normed, gate_up, pair)
            ops.silu_mul(pair, activated)
            ops.linear(x, o, branch)
            ops.add_rms_norm(branch, residual, norm, 1e-5, normed)
            ops.linear(normed, qkv, projected)
            ops.rope_kv_write(projected, *at, q)
        values = {"first": first, "q": q, "kv": caches, "activated": activated}
        return values | {"residual": residual}


@pytest.mark.usefixtures("on_kernel_device", "short_splits")
@pytest.mark.parametrize(
    ("dtype", "hidden", "head_dim"),
    [(FP32, 150, 24), (BF16, 150, 24), (BF16, 50, 16), (FP16, 50, 16)],
)
def test_the_fused_layer_is_its_parts(dtype: torch.dtype, hidden: int, head_dim: int) -> None:
    layer = Layer(ops_for(dtype, head_dim), dtype, hidden, head_dim)
    attended, residual = make(3, 3 * head_dim, seed=10), make(3, hidden, seed=11)
    fused = layer.run(attended, residual, fused=True)
    plain = Layer(select_ops("torch", KERNEL_DEVICE, dtype, head_dim), dtype, hidden, head_dim)
    exact = Layer(select_ops("torch", KERNEL_DEVICE, FP32, head_dim), FP32, hidden, head_dim)
    same_dtype = plain.run(attended, residual, fused=False)
    for name, reference in exact.run(attended, residual, fused=False).items():
        if dtype == FP32:  # which the reference is in itself
            assert max_abs_diff(fused[name], reference) <= 1e-5 * float(reference.abs().max())
        else:
            assert within_reference_noise(fused[name], same_dtype[name], reference)


@pytest.mark.usefixtures("on_kernel_device", "short_splits")
def test_a_fused_row_has_the_same_bits_beside_any_others() -> None:
    layer = Layer(ops_for(BF16), BF16, 150, 16)
    attended, residual = make(6, 48, seed=10), make(6, 150, seed=11)
    attended[5] = residual[5] = float("nan")
    together = layer.run(attended, residual, fused=True)
    part = slice(2, 4)
    alone = layer.run(attended[part], residual[part], fused=True, position=13)
    for name in ("first", "q", "activated", "residual"):
        assert torch.equal(alone[name], together[name][part])


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., CausalLM]:
    """A tiny model of a family; with one layer and few heads, for the interpreter's sake."""
    folders: dict[str, Path] = {}

    def get(family: str, dtype: str, kernels: str = "triton", **shape: int) -> CausalLM:
        key = f"{family} {shape}"
        if key not in folders:
            sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
            model = tiny.build(family, seed=3, **{**sizes, **shape})
            folders[key] = tiny.save(model, tmp_path_factory.mktemp("model") / "model")
        device = KERNEL_DEVICE if kernels == "triton" else "cpu"
        return load_model(
            folders[key], dtype=dtype, device=device, kernels=kernels, max_seq_len=CONTEXT
        )

    return get


@pytest.mark.parametrize("family", ["llama_bias", "qwen3", "qwen2"])
def test_logits_are_those_of_torch(load: Callable[..., CausalLM], family: str) -> None:
    # Of its own shape the head size is 4, too small for these kernels.
    shape = {"hidden_size": 64} if family == "qwen2" else {}
    kernels = {name: load(family, "float32", name, **shape) for name in ("triton", "torch")}
    prompt, tokens, parents = [5, 9, 30, 44, 7, 8], [3, 4, 5, 6], [-1, 0, 0, 1]
    found = {}
    for name, model in kernels.items():
        runner = StepRunner(model, CONTEXT)
        found[name] = torch.cat([runner.prefill(prompt, 4), runner.step(tokens, parents)]).cpu()
    largest = float(found["torch"].abs().max())
    assert max_abs_diff(found["triton"], found["torch"]) <= 1e-5 * largest


def test_a_tree_row_is_the_same_text_decoded_token_by_token(
    load: Callable[..., CausalLM],
) -> None:
    model = load("llama32", "bfloat16")
    prompt, tokens, parents = [5, 9, 30, 44, 7], [3, 4, 5, 6], [-1, 0, 0, 1]
    tree = StepRunner(model, CONTEXT)
    tree.prefill(prompt)
    logits = tree.step(tokens, parents)
    plain = StepRunner(model, CONTEXT)
    plain.prefill(prompt, 1)
    for node in (0, 1, 3):
        assert torch.equal(plain.prefill([tokens[node]])[0], logits[node])


def test_a_model_decodes_like_torch_and_like_without_drafts(
    load: Callable[..., CausalLM],
) -> None:
    prompt = [5, 9, 30, 5, 9, 30, 5, 9]
    tree = PTDConfig(width=2, depth=3)
    params = SamplingParams(max_new_tokens=6)
    model = load("llama32", "float32")
    drafted = finish(make_engine(model, tree, max_seq_len=CONTEXT), prompt, params)
    plain = finish(make_engine(model, "none", max_seq_len=CONTEXT), prompt, params)
    reference = make_engine(load("llama32", "float32", "torch"), "none", max_seq_len=CONTEXT)
    assert drafted.token_ids == plain.token_ids == finish(reference, prompt, params).token_ids


def test_samples_are_the_same_with_and_without_drafts(load: Callable[..., CausalLM]) -> None:
    params = SamplingParams(max_new_tokens=5, temperature=0.9, top_k=20, top_p=0.9, seed=5)
    model = load("llama32", "bfloat16")
    drafted, plain = (
        finish(make_engine(model, drafter, max_seq_len=CONTEXT), [5, 9, 30, 5, 9], params)
        for drafter in (PTDConfig(width=2, depth=3), "none")
    )
    assert drafted.token_ids == plain.token_ids


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_quantised_models(load: Callable[..., CausalLM], dtype: str) -> None:
    """int4 holds the numbers of the CPU kernels; int8 activations are rounded there, not here."""
    found = {}
    for name in ("triton", "cpu"):
        runner = StepRunner(load("llama32", dtype, name), CONTEXT)
        model = runner.model
        hidden = model.forward(
            torch.tensor([5, 9, 30], dtype=torch.int32, device=model.device),
            torch.arange(3, dtype=torch.int32, device=model.device),
            None,
            torch.zeros(1, dtype=torch.int32, device=model.device),
            3,
            runner.cache,
            runner.buffers,
        )
        found[name] = hidden.float().cpu()
    assert max_abs_diff(found["triton"], found["cpu"]) <= 0.1  # of values up to 3


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what is launched, and does not run it."""
    if not INTERPRETED:
        pytest.skip("counts the interpreter's launches: TRITON_INTERPRET=1")
    counted: Counter[str] = Counter()

    def skip(executor: Any, *args: Any, **kwargs: Any) -> None:
        counted[executor.fn.__name__] += 1

    interpreter = sys.modules["triton.runtime.interpreter"]
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", skip)
    return counted


def test_six_launches_a_layer(load: Callable[..., CausalLM], launches: Counter[str]) -> None:
    totals = []
    for layers in (1, 3):
        runner = StepRunner(load("qwen3", "bfloat16", num_hidden_layers=layers), CONTEXT)
        runner.length = 7
        launches.clear()
        runner.step([3, 4, 5], [-1, 0, 0])
        totals.append(launches.total())
    assert totals[1] - totals[0] == 2 * 6, launches


def test_no_op_waits_for_the_host(load: Callable[..., CausalLM], launches: Counter[str]) -> None:
    model = load("qwen3", "bfloat16")
    runner, n = StepRunner(model, CONTEXT), 4
    ops, prefix = model.ops, torch.tensor([9], dtype=torch.int32)
    tokens, mask = torch.zeros(n, dtype=torch.int32), tree_mask([-1, 0, 0, 1])
    logits = torch.zeros(n, model.config.vocab_size)
    out, sampling = torch.zeros(n, 4, dtype=torch.int32), torch.tensor([3.0, 0.9, 0.1, 0.5])
    with NoHostSync():
        hidden = model.forward(tokens, tokens, mask, prefix, 9 + n, runner.cache, runner.buffers)
        for mode in ("greedy", "sample", "filter"):
            ops.head_select(
                hidden, model.weights.lm_head, logits, logits[:, 0], logits[:, 1], sampling,
                n_verify=2, mode=mode, out=out,
            )  # fmt: skip
        ops.kv_commit(runner.cache.k, runner.cache.v, prefix.repeat(3), prefix, prefix)
    assert launches["draw_kernel"] == 2 and launches["kv_commit_kernel"] == 1
