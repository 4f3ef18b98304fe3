from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ptd_engine import LLM
from ptd_engine.checkpoint import SafetensorsCheckpoint
from ptd_engine.kernels import registry
from ptd_engine.kernels.registry import OP_NAMES, Backend

from .conftest import TEMPLATE, Run, save_model


def test_doctor_names_every_op_and_reason(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> Any:
        raise AssertionError("loaded although the probe refused")

    def broken(*_: object) -> str | None:
        raise RuntimeError("driver exploded")

    extra = (Backend("warp", lambda *_: "needs a GPU", never), Backend("bad", broken, never))
    monkeypatch.setattr(registry, "BACKENDS", (*registry.BACKENDS, *extra))
    result = run("doctor")
    assert result.exit_code == 0, result.output
    assert result.exception is None
    for op in OP_NAMES:
        assert f"torch {op}" in result.stdout
    assert "not available: needs a GPU" in result.stdout
    assert "driver exploded" in result.stdout
    assert "transformers" in result.stdout and "avx" in result.stdout.lower()


def test_doctor_survives_a_broken_installation(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> list[str]:
        raise LookupError("no metadata")

    monkeypatch.setattr("importlib.metadata.requires", broken)
    result = run("doctor")
    assert result.exit_code == 0
    assert "not available: LookupError: no metadata" in " ".join(result.stdout.split()).replace(
        "not available │", "not available:"
    )


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("dtype", "kernels"),
    [("float32", "torch"), ("float32", "cpu"), ("int8", "cpu"), ("int4", "cpu")],
)
def test_plan_equals_what_loading_takes(
    run: Run,
    tmp_path: Path,
    tied: bool,
    dtype: str,
    kernels: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = save_model(tmp_path / "m", TEMPLATE, tie_word_embeddings=tied)
    llm = LLM.from_pretrained(str(model), max_seq_len=100, dtype=dtype, kernels=kernels)

    def refuse(self: SafetensorsCheckpoint, name: str) -> None:
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(SafetensorsCheckpoint, "tensor", refuse)
    options = ("--dtype", dtype, "--kernels", kernels)
    result = run("plan", model, "--max-seq-len", 100, "--bandwidth-gb-s", 2, *options)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["parameters"] == llm.model.num_parameters
    assert found["step_read_bytes"] == llm.model.weight_bytes
    weights = llm.model.weights
    embedding = 0 if weights.lm_head is weights.embed else weights.embed.nbytes
    assert found["weight_bytes"] == llm.model.weight_bytes + embedding
    runner = llm.engine.runner
    assert found["kv_cache_bytes"] == runner.cache.nbytes  # type: ignore[attr-defined]
    activations = runner.activations  # type: ignore[attr-defined]
    assert found["step_buffer_bytes"] >= sum(
        getattr(activations, field.name).nbytes for field in fields(activations)
    )
    assert found["total_bytes"] == sum(
        found[key] for key in ("weight_bytes", "kv_cache_bytes", "step_buffer_bytes")
    )
    assert found["roofline_step_s_empty"] == found["step_read_bytes"] / 2e9
    full = found["step_read_bytes"] + 100 * found["kv_bytes_per_token"]
    assert found["roofline_step_s_full"] == full / 2e9


def test_plan_for_a_gpu_that_is_not_here(run: Run, chat_model: str) -> None:
    options = ("--device", "cuda", "--dtype", "bfloat16")
    default = json.loads(run("plan", chat_model, *options).stdout.splitlines()[-1])
    assert default["step_rows"] == 65  # hybrid's
    result = run("plan", chat_model, *options, "--drafter", "ptd")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert (found["device"], found["dtype"], found["step_rows"]) == ("cuda", "bfloat16", 157)
    assert found["weight_bytes"] == 2 * found["parameters"]
    assert found["available_bytes"] is found["largest_max_seq_len"] is found["fits"] is None
    assert found["graphs"] > 1 and found["workspace_bytes"] > 0
    parts = ("weight_bytes", "kv_cache_bytes", "step_buffer_bytes", "workspace_bytes")
    known = sum(found[key] for key in parts)
    assert found["total_bytes"] == known + found["graph_pool_bytes_estimate"]


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_plan_of_quantised_weights_on_a_gpu(run: Run, chat_model: str, dtype: str) -> None:
    options = ("--device", "cuda", "--dtype")
    whole, small = (
        json.loads(run("plan", chat_model, *options, name).stdout.splitlines()[-1])
        for name in ("bfloat16", dtype)
    )
    assert small["step_read_bytes"] < 0.75 * whole["step_read_bytes"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_plan_refuses_what_does_not_fit_and_names_what_does(
    run: Run, chat_model: str, device: str
) -> None:
    options = ("--device", device, "--dtype", "float32", "--memory-gb", 0.02)
    result = run("plan", chat_model, *options, "--max-seq-len", 100_000)
    found = json.loads(result.stdout.splitlines()[-1])
    longest = found["largest_max_seq_len"]
    assert result.exit_code == 2 and not found["fits"]
    assert "max_seq_len=100000 does not fit in memory: weights" in result.stderr
    assert f"The largest max_seq_len that fits is {longest}." in result.stderr
    assert run("plan", chat_model, *options, "--max-seq-len", longest).exit_code == 0
    assert run("plan", chat_model, *options, "--max-seq-len", longest + 1).exit_code == 2
    nothing = run("plan", chat_model, *options[:4], "--memory-gb", 1e-6)
    assert "No max_seq_len fits" in nothing.stderr and nothing.exit_code == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--bandwidth-gb-s", 0), "--bandwidth-gb-s=0.0 is not valid"),
        (("--bandwidth-gb-s", "1e-320"), "--bandwidth-gb-s=1e-320 is not valid"),
        (("--bandwidth-gb-s", "1e300"), "--bandwidth-gb-s=1e+300 is not valid"),
        (("--bandwidth-gb-s", "nan"), "--bandwidth-gb-s=nan is not valid"),
        (("--memory-gb", 0), "--memory-gb=0.0 is not valid"),
        (("--memory-gb", "nan"), "--memory-gb=nan is not valid"),
        (("--max-seq-len", 1), "--max-seq-len=1 is not valid"),
        (("--max-seq-len", 10**11), "max_seq_len=100000000000 is not valid"),
        (("--dtype", "int3"), "dtype='int3' is not valid"),
    ],
)
def test_plan_mistakes(run: Run, chat_model: str, options: tuple[object, ...], said: str) -> None:
    result = run("plan", chat_model, *options)
    assert result.exit_code == 2
    assert said in result.stderr


def test_plan_refuses_an_incomplete_checkpoint(run: Run, tmp_path: Path) -> None:
    model = save_model(tmp_path / "m", TEMPLATE)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    result = run("plan", model)
    assert result.exit_code == 2
    assert "lacks 9 tensors" in result.stderr
