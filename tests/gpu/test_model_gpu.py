"""Products, the fused layer and whole small models of the Triton backend on a GPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gpu.device import BF16, DEVICE, FP16, FP32, ON_GPU, get_ops, make, sizes
from torch import Tensor

from ptd_engine.config import PTDConfig, SamplingParams
from ptd_engine.kernels import Ops, WeightFormat, select_ops
from ptd_engine.model import CausalLM, load_model
from ptd_engine.testing import tiny
from ptd_engine.testing.compare import StepRunner, tree_depths, within_reference_noise

pytest.importorskip("triton", reason="Triton is not installed")

from engine.conftest import finish, make_engine
from kernels.test_triton_ops import Layer

CONTEXT = sizes([512], [64])[0]
MOST_ROWS = 90  # of one pass
formats = pytest.mark.parametrize("weight_format", ["float", "int8", "int4"])


def products(ops: Ops, weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """[N, out] in fp32 (a row's exact bits), and the stored matrix."""
    from ptd_engine.triton_kernels.linear_weights import dequantised

    packed = ops.pack_linear(weight, None)
    out = torch.full((x.shape[0], weight.shape[0]), float("nan"), device=DEVICE)
    ops.linear(x, packed, out)
    return out, dequantised(packed.handle, x.dtype)


@formats
@pytest.mark.parametrize("dtype", sizes([BF16, FP16], [BF16]), ids=str)
@pytest.mark.parametrize(
    ("outputs", "inputs"), sizes([(6144, 4096), (3584, 18944), (1000, 576)], [(40, 96)])
)
def test_a_product_is_right_and_its_rows_stand_alone(
    weight_format: WeightFormat, dtype: torch.dtype, outputs: int, inputs: int
) -> None:
    ops = get_ops("triton", dtype, 64, weight_format=weight_format)
    rows, some = sizes([128, [1, 8, 16, 63, 64, 65]], [3, [1, 2]])
    weight, x = make(outputs, inputs, dtype=dtype), make(rows, inputs, dtype=dtype, seed=1)
    out, stored = products(ops, weight, x)
    exact = x.double() @ stored.double().T
    # In fp32, so the rule of the dtype is a generous one; a lost tile or split is far beyond.
    assert within_reference_noise(out, exact.to(dtype), exact)
    for n in some:
        alone, _ = products(ops, weight, x[rows - n :])
        assert torch.equal(alone, out[rows - n :]), n
    x[0] = float("nan")
    beside, _ = products(ops, weight, x)
    assert torch.equal(beside[1:], out[1:])


@pytest.mark.parametrize("dtype", sizes([BF16, FP16, FP32], [BF16]), ids=str)
@pytest.mark.parametrize(("hidden", "head_dim"), sizes([(4096, 128), (896, 64)], [(50, 16)]))
def test_the_fused_layer_is_its_parts(dtype: torch.dtype, hidden: int, head_dim: int) -> None:
    with DEVICE:
        made = [
            Layer(ops, to, hidden, head_dim)
            for ops, to in (
                (get_ops("triton", dtype, head_dim), dtype),
                (select_ops("torch", DEVICE, dtype, head_dim), dtype),
                (select_ops("torch", DEVICE, FP32, head_dim), FP32),
            )
        ]
        inputs = make(3, 3 * head_dim, seed=10), make(3, hidden, seed=11)
        fused, parts, exact = (layer.run(*inputs, fused=i == 0) for i, layer in enumerate(made))
        single = made[0].run(*inputs, fused=False)
        for name, reference in exact.items():
            for found in (fused, single):
                assert within_reference_noise(found[name], parts[name], reference), name


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., CausalLM]:
    """A random model of a few layers."""
    folders: dict[str, Path] = {}
    shape = sizes(
        [{"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "head_dim": 64}],
        [{"num_hidden_layers": 1}],
    )[0]
    heads = sizes([(8, 2)], [(2, 1)])[0]
    shape |= {"num_attention_heads": heads[0], "num_key_value_heads": heads[1]}
    shape |= {"max_position_embeddings": 2048}

    def get(family: str, dtype: str, kernels: str) -> CausalLM:
        if kernels == "cuda" and not ON_GPU:
            pytest.skip("the kernels built for the CPU serve no whole model")
        get_ops(kernels, BF16, 64)
        if family not in folders:
            model = tiny.build(family, seed=3, **shape)
            folders[family] = tiny.save(model, tmp_path_factory.mktemp(family) / "model")
        return load_model(
            folders[family], dtype=dtype, device=DEVICE, kernels=kernels, max_seq_len=CONTEXT
        )

    return get


def prompt_of(length: int) -> list[int]:
    draw = random.Random(1)
    return [draw.randrange(3, 60) for _ in range(length)]


@pytest.mark.parametrize("family", sizes(["llama32", "qwen3", "llama_bias"], ["llama32"]))
@pytest.mark.parametrize("dtype", sizes(["bfloat16", "float16", "float32"], ["bfloat16"]))
def test_logits_are_about_those_of_torch(
    load: Callable[..., CausalLM], backend: str, family: str, dtype: str
) -> None:
    prompt, parents = prompt_of(CONTEXT // 2), [-1, 0, 0, 1, 2]
    found = []
    for kernels, to in ((backend, dtype), ("torch", dtype), ("torch", "float32")):
        runner = StepRunner(load(family, to, kernels), CONTEXT)
        runner.prefill(prompt, MOST_ROWS)
        found.append(runner.step([3, 4, 5, 6, 7], parents).float())
    mine, same, exact = found
    # Through several layers: twice the distance of the plain one is no longer a law, four times is.
    distance = float((same - exact).abs().max()) + 1e-4 * float(exact.abs().max())
    assert float((mine - exact).abs().max()) <= 4 * distance


@pytest.mark.parametrize("dtype", sizes(["bfloat16", "float16", "int8", "int4"], ["bfloat16"]))
def test_a_tree_row_is_the_same_text_decoded_token_by_token(
    load: Callable[..., CausalLM], dtype: str
) -> None:
    n, model, draw = sizes([60], [4])[0], load("llama32", dtype, "triton"), random.Random(2)
    prompt, tokens = prompt_of(CONTEXT // 2 + 1), [draw.randrange(3, 60) for _ in range(n)]
    parents = [-1, *(draw.randrange(max(0, i - 4), i) for i in range(1, n))]
    tree = StepRunner(model, CONTEXT)
    tree.prefill(prompt, MOST_ROWS)
    logits = tree.step(tokens, parents)
    depths = tree_depths(parents)
    node = depths.index(max(depths))
    path = [node]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    plain = StepRunner(model, CONTEXT)
    plain.prefill(prompt, sizes([64], [5])[0])
    for row in reversed(path):
        assert torch.equal(plain.prefill([tokens[row]])[0], logits[row]), row


@pytest.mark.skipif(not ON_GPU, reason="minutes if interpreted; tests/kernels has a smaller one")
def test_drafting_changes_no_token(load: Callable[..., CausalLM]) -> None:
    model = load("llama32", "bfloat16", "triton")
    for params in (
        SamplingParams(max_new_tokens=100),
        SamplingParams(max_new_tokens=100, temperature=0.9, top_k=20, top_p=0.9, seed=5),
    ):
        drafted, plain = (
            finish(make_engine(model, drafter, max_seq_len=CONTEXT), [5, 9, 30, 5, 9], params)
            for drafter in (PTDConfig(width=6, depth=8), "none")
        )
        assert drafted.token_ids == plain.token_ids
