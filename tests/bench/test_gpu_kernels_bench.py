"""The bookkeeping of `bench kernels --gpu`, and a run of it on the CPU with tiny shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def importable(bench: Any) -> None:
    """`bench` is on the path."""


def test_the_grid_is_what_the_aims_speak_of() -> None:
    from bench.gpu_cases import FULL

    cases = FULL.attention()
    assert len(cases) == 2 * 5 * 6 == len(set(cases))
    assert {c.heads for c in cases} == {"32/8", "28/4"}
    assert {c.prefix for c in cases} == {512, 2048, 8192, 32768, 131072}
    # What time may not suffice for comes last; the time of one row before what is set beside it.
    assert [c.prefix for c in cases[:12]] == [8192] * 6 + [32768] * 6
    assert [c.rows for c in cases[:6]] == [1, 8, 16, 32, 64, 128]
    shapes = {(c.model, c.matrix): (c.outputs, c.inputs) for c in FULL.linears}
    assert shapes["Llama-3.1-8B", "qkv"] == (6144, 4096)
    assert shapes["Llama-3.1-8B", "gate, up"] == (28672, 4096)
    assert shapes["Qwen2.5-7B", "qkv"] == (4608, 3584)
    assert shapes["Qwen2.5-7B", "down"] == (3584, 18944)
    assert shapes["Qwen2.5-7B", "head"] == (152064, 3584)
    assert [c.matrix for c in FULL.linears if c.head] == ["head", "head"]


def test_bytes_are_counted_once() -> None:
    from bench.gpu_cases import AttentionCase, LinearCase

    case = AttentionCase(32, 8, 128, 8192, 64)
    assert case.nbytes(2) == 2 * (2 * 8 * 8256 * 128 + 2 * 64 * 32 * 128)
    assert LinearCase("", "", 4096, 6144).nbytes(3, 2, 999) == 999 + 2 * 3 * (4096 + 6144)


def attention_row(kernel: str, rows: int, us: float, prefix: int = 8192) -> dict[str, Any]:
    row = {"heads": "32/8", "prefix": prefix, "rows": rows, "kernel": kernel}
    return row | {"us": us, "bytes": 4_000_000}


def test_ratios_of_attention() -> None:
    from bench.gpu_cases import aims, compare_attention

    measured = [
        attention_row("triton", 1, 10),
        attention_row("triton", 64, 12),
        attention_row("triton dense", 64, 11),
        attention_row("sdpa", 64, 48),
        attention_row("sdpa", 64, 1, prefix=512),
    ]
    one, many, dense, sdpa, other = compare_attention(measured, 500.0)
    assert many["gb_s"] == pytest.approx(4_000_000 / 12 / 1e3)
    assert many["of_copy"] == pytest.approx(many["gb_s"] / 500)
    assert many["to_one_row"] == pytest.approx(1.2) and one["to_one_row"] == 1
    assert dense["to_one_row"] is None  # of that form one row was not measured
    assert many["to"] == {"sdpa": pytest.approx(0.25)} and one["to"] == {}
    assert sdpa["to"] == {} == other["to"]
    found = aims([one, many, dense, sdpa, other], [])
    assert found["attention_of_copy"]["worst"] == pytest.approx(dense["of_copy"])  # the faster form
    assert found["attention_to_one_row"]["worst"] is None
    assert found["linear_of_copy"]["worst"] is None


def test_ratios_of_linears() -> None:
    from bench.gpu_cases import aims, compare_linears

    def row(kernel: str, matrix: str, rows: int, us: float, nbytes: float) -> dict[str, Any]:
        named = {"model": "m", "matrix": matrix, "kernel": kernel, "rows": rows}
        return named | {"us": us, "bytes": nbytes}

    found = compare_linears(
        [
            row("cublas", "qkv", 8, 20, 50e6),
            row("triton bf16", "qkv", 8, 25, 50e6),
            row("triton int8", "qkv", 8, 10, 25e6),
            row("triton bf16", "o", 8, 100, 1e6),
            row("triton bf16", "qkv", 128, 100, 50e6),
        ],
        4000.0,
    )
    assert [r["to_cublas"] for r in found] == [1, 1.25, 0.5, None, None]
    assert found[1]["of_copy"] == pytest.approx(0.5)
    # Neither small matrices nor more than 64 rows count.
    assert aims([], found)["linear_of_copy"] == {"aim": 0.85, "worst": pytest.approx(0.5)}


def test_jobs_end_with_the_time() -> None:
    from bench.gpu_cases import Budget
    from bench.gpu_kernels import run_jobs

    seconds = [0.0]

    def job() -> Iterator[dict[str, Any]]:
        seconds[0] += 4
        yield {"us": seconds[0]}
        yield {"kernel": "flex", "reason": "broken"}

    budget = Budget(10, clock=lambda: seconds[0])
    rows, left_out = run_jobs([("attention", job)] * 4 + [("linears", job)], budget)
    assert [row["us"] for row in rows] == [4, 8, 12]
    assert left_out == [
        "flex: broken (3 cases)",
        "no time: 1 cases of attention",
        "no time: 1 cases of linears",
    ]


def test_a_wrong_result_is_not_timed() -> None:
    from bench.gpu_attention import AttentionBench
    from bench.gpu_cases import AttentionCase
    from bench.gpu_rivals import sdpa
    from bench.gpu_timing import Timer

    def right(inputs: Any, out: torch.Tensor) -> None:
        out.copy_(sdpa(inputs)())

    def wrong(inputs: Any, out: torch.Tensor) -> None:
        right(inputs, out)
        out[-1, 0] += 0.25

    def unwritten(inputs: Any, out: torch.Tensor) -> None:
        right(inputs, out)
        out[0, 3] = float("nan")

    def uneven(inputs: Any, out: torch.Tensor) -> None:
        right(inputs, out)
        if len(out) > 1:  # one rounding: within what is allowed, and yet other bits
            out[0] = torch.nextafter(out[0], out[0] + 1)

    own = {"right": right, "wrong": wrong, "unwritten": unwritten, "uneven": uneven}
    measured = AttentionBench(Timer(CPU, 1), CPU, own)
    for rows in (1, 3):
        found = {r["kernel"]: r for r in measured.own(AttentionCase(4, 2, 16, 9, rows))}
        assert found["sdpa"]["us"] > 0 and found["right"]["us"] > 0
        assert found["wrong"]["error"] == pytest.approx(0.25, abs=0.02)
        assert found["unwritten"]["error"] == -1
        assert "us" not in found["wrong"] and "us" not in found["unwritten"]
    assert found["uneven"]["root_bits_equal"] is False


def test_tiny_shapes_on_the_cpu(bench: Any) -> None:
    pytest.importorskip("triton", reason="Triton is an optional package: pip install triton")
    options = ("--gpu", "--rehearse", "--parts", "linears", "others")
    status, document, output = bench("kernels", *options)
    results = document["results"]
    assert status == 0 and document["correct"] and not results["mismatches"]
    linears = {(r["kernel"], r["rows"]): r for r in results["linears"]}
    formats = ("cublas", "triton bf16", "triton int8", "triton int4")
    assert set(linears) == {(name, rows) for name in formats for rows in (1, 3)}
    assert all(linears[name, 3]["bits_equal"] for name in formats[1:])
    assert linears["triton int8", 1]["bytes"] < linears["triton bf16", 1]["bytes"]
    assert {r["kernel"] for r in results["attention"]} >= {"flex"}
    assert any("flashinfer" in reason for reason in results["left_out"])
    assert any(reason.startswith("cuda: ") for reason in results["left_out"])
    assert "x cuBLAS" in output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(bench: Any) -> None:
    status, document, output = bench("kernels", "--gpu")
    assert status == 2 and not document
    assert "no CUDA device" in output and "--rehearse" in output
