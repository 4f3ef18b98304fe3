from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ptd_engine.kernels import Ops

SMALL = ("--shapes", "tiny", "--rows", "1,5", "--prefix", 9, "--repeats", 2)
OPS = {
    *("linear", "add_rms_norm", "rope_kv_write", "tree_attention", "silu_mul"),
    *("head_select", "kv_commit"),
}


@pytest.fixture(autouse=True)
def small_read(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import environment

    monkeypatch.setattr("bench.kernels.read_bandwidth", environment.read_bandwidth)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_op_on_every_backend(bench: Any, dtype: str) -> None:
    from bench.kernels import available_backends

    status, document, output = bench("kernels", "--dtype", dtype, *SMALL)
    assert status == 0 and document["correct"]
    found = document["results"]["kernels"]
    backends = available_backends()
    assert {"torch", "cpu", "cpu:scalar"} <= set(backends)
    assert document["settings"]["backends"] == backends
    # 7 ops, one of them (linear) on three matrices; the cache commit takes no rows.
    assert len(found) == len(backends) * (2 * 8 + 1)
    assert {row["op"] for row in found} == OPS
    read = document["results"]["read_gb_s"]
    for row in found:
        assert row["ms_min"] <= row["ms"]
        assert row["gb_s"] == pytest.approx(row["bytes"] / row["ms"] / 1e6)
        assert row["of_read"] == pytest.approx(row["gb_s"] / read)
    assert "of the bandwidth" in output


def test_bytes_are_those_of_the_arguments(bench: Any) -> None:
    from bench.kernel_cases import make_cases
    from bench.kernel_types import SHAPES

    cases = make_cases(SHAPES["tiny"], 5, 9, torch.bfloat16)
    by_name = {(case.op, case.detail.partition(" ")[0]): case.nbytes for case in cases}
    assert by_name["linear", "qkv"] == 2 * (64 * 128 + 5 * (64 + 128))
    # 14 keys and values of 2 heads of 16, 5 queries and outputs of 4 heads
    assert by_name["tree_attention", "4/2x16,"] == 2 * (2 * 14 * 2 * 16 + 2 * 5 * 4 * 16)
    assert by_name["silu_mul", "96"] == 2 * 3 * 5 * 96


def test_a_wrong_result_gets_no_time(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import kernels

    make = kernels._ops

    def faulty(name: str, *arguments: Any) -> Ops:
        ops = make(name, *arguments)
        if name != "cpu":
            return ops

        def silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
            ops.silu_mul(gate_up, out)
            out[0, 0] += 1

        def head_select(*inputs: Any, out: torch.Tensor, **options: Any) -> None:
            ops.head_select(*inputs, out=out, **options)
            out[-1, 0] = (out[-1, 0] + 1) % 320

        return replace(ops, silu_mul=silu_mul, head_select=head_select)

    monkeypatch.setattr(kernels, "_ops", faulty)
    options = ("--backends", "torch", "cpu", "--ops", "silu_mul", "head_select")
    status, document, output = bench("kernels", *SMALL, *options)
    assert status == 1 and not document["correct"]
    results = document["results"]
    assert {row["backend"] for row in results["kernels"]} == {"torch"}
    wrong = {(w["op"], w["backend"], w["rows"]) for w in results["mismatches"]}
    assert wrong == {(op, "cpu", n) for op in ("silu_mul", "head_select") for n in (1, 5)}
    assert all(w["error"] > 0 for w in results["mismatches"]) and "DIFFERS" in output


@pytest.mark.parametrize(
    ("options", "named"), [(["--ops", "softmax"], "softmax"), (["--backends", "gpu9"], "gpu9")]
)
def test_what_is_not_there_is_named(bench: Any, options: list[str], named: str) -> None:
    status, document, output = bench("kernels", *SMALL, *options)
    assert status == 2 and document == {} and named in output
