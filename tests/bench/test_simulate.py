"""Predictions of `bench simulate`: by hand where that is possible, and labelled everywhere."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def model_of(
    name: str = "llama-3.1-8b", ranks: int = 1, *, graphs: bool = True, **fields: Any
) -> Any:
    from bench.gpus import GPUS
    from bench.model_shapes import load_shape
    from bench.simulate_predict import step_model

    device = replace(GPUS["h200"], **fields)
    return step_model(device, load_shape(name), "bfloat16", ranks, graphs=graphs)


def test_bytes_are_those_of_the_published_model() -> None:
    model = model_of()
    assert model.weight_bytes == pytest.approx(15.01e9, rel=1e-3)  # all but the embedding
    assert model.kv_bytes(1) == 131072
    assert model.launches == 6 * 32 + 8


def test_one_row_by_hand() -> None:
    free = dict.fromkeys(("launch_us", "sync_us"), 1e-9)
    step = model_of(bandwidth_share=1.0, tflops=1e9, l2_gb_s=1e12, **free).time(1, 0)
    assert step.total == pytest.approx(15.01e9 / 4.8e12, rel=2e-3)
    step = model_of(bandwidth_share=1.0, tflops=1e9, l2_gb_s=1e12, **free).time(1, 8192)
    assert step.attention == pytest.approx(8192 * 131072 / 4.8e12)
    launched = model_of(launch_us=2.0, sync_us=7.0).time(1, 0, host_us=3.0)
    assert launched.launches == pytest.approx(200 * 2e-6)
    assert launched.host == pytest.approx(10e-6)
    # With arithmetic as the limit, and tiles of 64 rows: twice the operations from row 65 on.
    slow = model_of(tflops=1.0, flops_share=1.0)
    assert slow.time(64, 0).weights == pytest.approx(2 * 64 * 7.5047e9 / 1e12, rel=1e-3)
    assert slow.time(65, 0).weights == pytest.approx(2 * slow.time(64, 0).weights)
    assert slow.time(1, 0).weights == slow.time(64, 0).weights
    one_by_one = model_of(tflops=1.0, flops_share=1.0, overlap=1e-9).time(64, 0).weights
    assert one_by_one == pytest.approx(slow.time(64, 0).weights + 15.01e9 / 4.32e12, rel=1e-2)


def test_more_rows_and_longer_prefixes_cost_more() -> None:
    model = model_of()
    times = [model.time(rows, 2048).total for rows in (1, 8, 64, 65, 128, 256)]
    assert times == sorted(times) and times[0] < times[-1]
    lengths = [model.time(64, prefix).total for prefix in (0, 512, 8192, 131072)]
    assert lengths == sorted(set(lengths))
    assert model.idle(64, 500, 8192) > model.idle(1, 500, 8192) > 0 == model.idle(1, 512, 512)


def test_ranks_share_bytes_and_pay_for_sums() -> None:
    one, two = model_of(), model_of(ranks=2)
    assert 2 * two.kv_bytes(1) == one.kv_bytes(1)
    assert two.weight_bytes == pytest.approx(one.weight_bytes / 2, rel=1e-3)
    first, second = one.time(8, 512), two.time(8, 512)
    assert first.sums == 0 and second.sums > 64 * 10e-6
    assert second.host - first.host == pytest.approx(150e-6)
    slow_link = model_of(ranks=2, link_gb_s=1.0).time(8, 512)
    assert slow_link.sums > second.sums
    # 168 launches of 6 us take longer than a small model's kernels: the host is the limit.
    without = model_of("llama-3.2-1b", ranks=2, graphs=False)
    captured = model_of("llama-3.2-1b", ranks=2)
    gap = without.time(8, 512).total - captured.time(8, 512).total
    assert gap > 0 and without.launches == 168
    assert without.time(8, 512).total >= 168 * 6e-6


def test_predictions_are_labelled_and_within_the_limits(bench: Any) -> None:
    status, document, printed = bench("simulate", "--prefix", "512,8192", "--rows", "1,64")
    assert status == 0 and document["benchmark"] == "simulate"
    assert "PREDICTION, not measured" in document["settings"]["label"]
    assert document["results"]["prediction"] is True
    assert printed.count("PREDICTION, not measured") >= 3
    assert set(document["settings"]["assumed"]) < set(document["settings"]["gpus"]["h200"])
    (found,) = document["results"]["predictions"]
    assert (found["gpu"], found["model"], found["prediction"]) == ("h200", "llama-3.1-8b", True)
    assert {(c["prefix"], c["rows"]) for c in found["curve"]} == {
        (prefix, rows) for prefix in (512, 8192) for rows in (1, 64)
    }
    for c in found["curve"]:
        assert sum(c["parts_us"].values()) == pytest.approx(1e3 * c["ms"])
    labels = {d["drafter"] for d in found["drafters"]}
    assert {"none", "ptd", "hybrid", "token-recycling"} <= labels
    assert {d["budget"] for d in found["drafters"] if d["drafter"] == "hybrid"} >= {None, 8, 64}
    for d in found["drafters"]:
        assert d["tokens_per_second"] == pytest.approx(1e3 * d["tokens_a_step"] / d["step_ms"])
        assert d["bucket"] >= d["rows"] - 0.01
        if d["drafter"] == "none":
            assert 0.5 < d["of_bandwidth"] < 0.9  # what the device's share allows at most


def test_fields_of_the_device_are_replaced(bench: Any) -> None:
    arguments = ("simulate", "--prefix", 512, "--rows", 1)
    speeds = []
    for settings in ([], ["--set", "bandwidth_gb_s=9600", "launch_us=0.1"]):
        _, document, _ = bench(*arguments, *settings)
        speeds.append(document["results"]["predictions"][0]["drafters"][0]["tokens_per_second"])
    assert document["settings"]["gpus"]["h200"]["bandwidth_gb_s"] == 9600
    assert speeds[1] > 1.9 * speeds[0]


def test_a_model_that_does_not_fit_has_no_speed(bench: Any) -> None:
    _, document, _ = bench(*("simulate", "--gpu", "rtx4090", "--prefix", "512,131072", "--rows", 1))
    (found,) = document["results"]["predictions"]
    assert found["beyond_memory"] == [131072]
    assert {c["prefix"] for c in found["curve"]} == {512}


def test_a_config_json_and_quantised_weights(bench: Any, tmp_path: Path) -> None:
    from bench.model_shapes import SHAPES

    path = tmp_path / "config.json"
    path.write_text(json.dumps(SHAPES["qwen2.5-0.5b"]), encoding="utf-8")
    sizes = {}
    for name in ("qwen2.5-0.5b", path, tmp_path):
        for dtype in ("bfloat16", "int8", "int4"):
            _, document, _ = bench("simulate", "--model", name, "--dtype", dtype)
            found = document["results"]["predictions"][0]
            sizes[str(name), dtype] = found["weight_bytes"]
    assert len(set(sizes.values())) == 3
    by_dtype = [sizes[str(path), d] for d in ("int4", "int8", "bfloat16")]
    assert by_dtype == sorted(by_dtype)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "gpt-9"), "--model='gpt-9' is not valid"),
        (("--set", "colour=3"), "--set='colour=3' is not valid"),
        (("--set", "tflops=-3"), "--set='tflops=-3' is not valid"),
        (("--set", "tflops=nan"), "--set='tflops=nan' is not valid"),
        (("--tensor-parallel", "3"), "tensor_parallel=3 is not valid"),
        (("--acceptance", "step_int8.json"), "--acceptance='step_int8.json' is not valid"),
        (("--acceptance", "nothing.json"), "file='nothing.json' is not valid"),
        (("--host-times", "step_int8.json"), "--host-times='step_int8.json' is not valid"),
        (("--validate", "decode_cpu.json"), "--validate='decode_cpu.json' is not valid"),
    ],
)
def test_mistakes(bench: Any, arguments: tuple[str, ...], said: str) -> None:
    status, _, printed = bench("simulate", *arguments)
    assert status == 2 and said in printed


def test_measured_steps_are_compared(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.simulate_check.measured_tflops", lambda config, dtype: 1.0)
    status, document, _ = bench(
        "simulate", "--validate", "step_bfloat16.json", "hybrid/hybrid.json"
    )
    assert status == 0
    results = document["results"]
    assert results["prediction"] is False and results["tflops_of_a_thread"] == {"bfloat16": 1.0}
    measured = json.loads((ROOT / "bench/results/step_bfloat16.json").read_text("utf-8"))
    own = [s for s in results["steps"] if s["document"] == "step_bfloat16.json"]
    assert [s["measured_ms"] for s in own] == [s["ms"] for s in measured["results"]["steps"]]
    one = own[0]
    weights = measured["results"]["weight_bytes"] / measured["machine"]["memory_read_best_gb_s"]
    assert one["predicted_ms"] > weights / 1e6
    for s in results["steps"]:
        assert s["error"] == pytest.approx(s["predicted_ms"] / s["measured_ms"] - 1)
        assert s["without_overlap_ms"] > s["predicted_ms"]
    assert results["worst_error"] == max(abs(s["error"]) for s in results["steps"])


def test_arithmetic_is_measured() -> None:
    from bench.model_shapes import load_shape
    from bench.simulate_check import measured_tflops

    assert 0 < measured_tflops(load_shape("smollm2-135m"), "float32") < 1e3


def test_a_loop_on_the_device_is_judged_by_the_best_on_the_host() -> None:
    from bench.acceptance import Drafting, HostTimes
    from bench.resident import judge

    recycling = Drafting("token-recycling", None, 64, 2.3, "made up")
    better = Drafting("hybrid", None, 64, 3.2, "made up")
    slow, fast = (HostTimes({}, [(1.0, us), (256.0, us)], "warm") for us in (2000.0, 1.0))
    model = model_of("llama-3.2-1b")
    assert judge(model, [recycling], slow, 512)["build"] is True
    assert judge(model, [recycling], fast, 512)["build"] is False
    found = judge(model, [recycling, better], fast, 512)
    assert found["best_by_host"]["drafter"] == "hybrid"
    assert all(r["gain_over_best"] < r["gain"] for r in found["rows"])
    assert {r["drafter"] for r in found["rows"]} == {"token-recycling"}


def test_buckets_follow_the_costs() -> None:
    from bench.bucket_choice import choose, choose_kv, interpolated

    cost = interpolated({1: 1.0, 8: 1.0, 16: 2.0, 64: 8.0})
    assert [cost(n) for n in (1, 4, 12, 64, 80)] == [1, 1, 1.5, 8, 8]
    found = choose({3: 5, 8: 5, 64: 90}, cost, label="made up")
    assert found["chosen"]["node_buckets"] == [8, 64]
    assert found["chosen"]["extra_time"] == pytest.approx(0)
    assert found["steps"] == 100 and found["mean_rows"] == pytest.approx(58.15)
    assert found["one"]["extra_time"] > found["default"]["extra_time"] >= 0
    kv = choose_kv(model_of(), 8192)
    assert kv["chosen"]["extra_time"] <= kv["default"]["extra_time"] < kv["one"]["extra_time"]
    assert len(kv["chosen"]["kv_buckets"]) == len(kv["default"]["kv_buckets"])


def test_rows_are_counted_as_a_drafter_asks_for_them(
    bench: Any, tiny_model: Path, prompt_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "asked.json"
    arguments = ["simulate-decode", tiny_model, "--prompts", prompt_file, "--raw"]
    status, document, _ = bench(*arguments, "--max-new-tokens", 12, "--out", out)
    assert status == 0
    results = document["results"]
    assert results["prediction"] is True
    assert sum(results["rows"].values()) == results["steps"] <= results["tokens"] == 36
    mean = sum(int(n) * count for n, count in results["rows"].items()) / results["steps"]
    assert results["mean_rows"] == pytest.approx(mean)
    # A large model's weights take so long that rows up to a tile's edge cost next to nothing.
    assert max(map(int, results["rows"])) > 32
    status, document, _ = bench("simulate", "--acceptance", out, "--prefix", 512, "--rows", 1)
    drafted = document["results"]["predictions"][0]["drafters"][1]
    assert drafted["tokens_a_step"] == pytest.approx(results["tokens_a_step"])
    assert "sized for llama-3.1-8b on H200" in drafted["drafter"]


def test_tables_of_gpus_name_their_sources() -> None:
    from bench.gpus import ASSUMED, GPUS
    from bench.model_shapes import SHAPES, load_shape

    for device in GPUS.values():
        assert "data sheet" in device.source or "paper" in device.source
        numbers = [v for k, v in asdict(device).items() if k not in ("name", "source")]
        assert all(math.isfinite(v) and v > 0 for v in numbers)
        assert set(ASSUMED) < set(asdict(device))
    for name in SHAPES:
        assert load_shape(name).num_layers > 0
