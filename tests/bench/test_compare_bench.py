from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ptd_engine.checkpoint import SafetensorsCheckpoint
from ptd_engine.config import SamplingParams
from ptd_engine.llm import LLM

FAKE_LLAMA = Path(__file__).parent / "fake_llama"
NEW_TOKENS = 12
PREFILL = 40


def arguments(model: Path, prompts: Path, *more: object) -> list[object]:
    common = ["--max-new-tokens", NEW_TOKENS, "--repeats", 2, "--prefill-tokens", PREFILL, "--raw"]
    return ["compare", model, "--prompts", prompts, *common, *more]


def engines(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["engine"]: entry for entry in document["results"]["engines"]}


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A file with a header whose matrices have types; nothing here reads its weights."""
    import gguf as writers
    import numpy as np

    path = tmp_path / "tiny.gguf"
    writer = writers.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.zeros((2, 32), np.float16))
    writer.add_tensor("output.weight", np.zeros((2, 32), np.float16))
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


Recite = Callable[[Callable[[list[int]], list[int]]], list[object]]


@pytest.fixture
def recite(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path, prompt_file: Path, gguf: Path
) -> Recite:
    """Let llama.cpp's stand-in write our plain outputs, changed by a function; returns options."""

    def prepare(change: Callable[[list[int]], list[int]]) -> list[object]:
        llm = LLM.from_pretrained(str(tiny_model), drafter="none")
        prompts = [llm.encode(json.loads(line)["turns"][0]) for line in prompt_file.open()]
        text = (FAKE_LLAMA.parents[2] / "bench/data/quality.txt").read_text(encoding="utf-8")
        prompts.append(llm.encode(text)[:PREFILL])
        params = SamplingParams(max_new_tokens=NEW_TOKENS)
        known = [[*p, *change(llm.generate(p, params).token_ids)] for p in prompts]
        monkeypatch.setenv("RECITE", json.dumps(known))
        monkeypatch.setenv("PYTHONPATH", str(FAKE_LLAMA))
        return ["--llama-python", sys.executable, "--llama-gguf", gguf]

    return prepare


def test_all_are_timed_by_one_definition(bench: Any, tiny_model: Path, prompt_file: Path) -> None:
    status, document, output = bench(*arguments(tiny_model, prompt_file))
    assert status == 0 and document["correct"] and document["benchmark"] == "compare"
    found = engines(document)
    lookup = "transformers, prompt lookup"
    assert list(found) == ["plain", "hybrid", "transformers", lookup]
    for entry in found.values():
        assert entry["right"] and entry["dtype"] == "float32"
        assert entry["equal_outputs"] == 3 and entry["leading_share"] == 1
        assert entry["decode_tokens_per_second"] > 0 and entry["time_to_first_token_ms"] > 0
    plain, other = found["plain"], found["transformers"]
    assert plain["of_plain"] == 1
    assert other["of_plain"] == pytest.approx(
        other["decode_tokens_per_second"] / plain["decode_tokens_per_second"]
    )
    assert plain["prefill_s"] > 0 and other["prefill_s"] > 0
    assert found["hybrid"]["prefill_s"] is None and found[lookup]["prefill_s"] is None
    assert document["settings"]["engines"][lookup]["prompt_lookup_num_tokens"] == 10
    for prompt in document["results"]["prompts"]:
        assert prompt["leading_tokens"] == prompt["tokens"]
        assert all(prompt["first_s"][name] < prompt["total_s"][name] for name in found)
    details = document["settings"]["engines"]["transformers"]
    assert details == {"dtype": "float32", "class": "LlamaForCausalLM", "attention": "sdpa"}
    assert f"prefill of {PREFILL}, s" in output and "3/3" in output
    assert str(tiny_model.parent) not in output and str(prompt_file.parent) not in output


def test_decoding_is_timed_without_the_first_step(bench: Any) -> None:
    from bench.contestants import Timed

    # One token a step, and a first step of three.
    plain = Timed([1] * 11, first_s=1.0, first_tokens=1, total_s=3.0)
    drafted = Timed([1] * 11, first_s=1.0, first_tokens=3, total_s=2.0)
    assert Timed.merge_speed([plain]) == 5 and Timed.merge_speed([drafted]) == 8
    assert Timed.merge_speed([plain, drafted]) == pytest.approx(18 / 3)
    assert Timed.merge_speed([Timed([1], 1.0, 1, 1.0)]) == 0


def test_llama_cpp_takes_part_through_a_pipe(
    bench: Any, tiny_model: Path, prompt_file: Path, recite: Recite
) -> None:
    options = recite(lambda output: output)
    status, document, _ = bench(*arguments(tiny_model, prompt_file, *options))
    assert status == 0
    peer = engines(document)["llama.cpp"]
    assert peer["equal_outputs"] == 3 and peer["prefill_s"] > 0
    assert peer["dtype"] == "F16 + F32"  # the most frequent type of a matrix comes first
    details = document["settings"]["engines"]["llama.cpp"]
    assert details["gguf"] == "tiny.gguf" and details["version"] == "0.0.fake"
    assert details["threads"] == document["machine"]["torch_threads"]


def test_all_get_the_threads_asked_for(
    bench: Any, tiny_model: Path, prompt_file: Path, recite: Recite
) -> None:
    options = ["--without-transformers", *recite(lambda output: output)]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        _, document, _ = bench(*arguments(tiny_model, prompt_file, "--threads", 1, *options))
        assert torch.get_num_threads() == 1  # what transformers computes with
    finally:
        torch.set_num_threads(before)
    assert document["settings"]["threads"] == 1
    assert document["settings"]["engines"]["llama.cpp"]["threads"] == 1


def test_a_plausible_difference_is_reported_and_the_peer_keeps_its_speed(
    bench: Any,
    tiny_model: Path,
    prompt_file: Path,
    recite: Recite,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bench.agreement import Difference

    options = recite(lambda output: [*output[:5], (output[5] + 1) % 256, *output[6:]])
    monkeypatch.setattr(Difference, "is_plausible", True)
    status, document, output = bench(
        *arguments(tiny_model, prompt_file, "--without-transformers", *options)
    )
    assert status == 0 and list(engines(document)) == ["plain", "hybrid", "llama.cpp"]
    peer = engines(document)["llama.cpp"]
    assert peer["right"] and peer["equal_outputs"] == 0 and peer["leading_tokens"] == 15
    assert peer["decode_tokens_per_second"] > 0
    found = document["results"]["differences"]
    assert [(d["engine"], d["position"]) for d in found] == [("llama.cpp", 5)] * 3
    for difference in found:
        assert difference["theirs"] == (difference["ours"] + 1) % 256
        assert difference["rank"] >= 2 and difference["logit_gap"] > 0
    assert "llama.cpp differs from our plain decoding: few few/0, output token 5" in output


@pytest.mark.parametrize(("rank", "plausible"), [(1, True), (10, True), (11, False), (None, False)])
def test_plausible_is_one_of_ten(bench: Any, rank: int | None, plausible: bool) -> None:
    from bench.agreement import Difference

    assert Difference("peer", "few", "0", 4, 7, 9, 0.1, rank).is_plausible == plausible


def test_a_peer_with_another_model_gets_no_speed(
    bench: Any, tiny_model: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = SafetensorsCheckpoint.tensor

    def shuffled(self: SafetensorsCheckpoint, name: str) -> Any:
        tensor = read(self, name)
        return tensor.flip(0) if name == "lm_head.weight" and loaded else tensor

    loaded: list[bool] = []
    model = LLM.from_pretrained
    monkeypatch.setattr(SafetensorsCheckpoint, "tensor", shuffled)
    monkeypatch.setattr(
        LLM, "from_pretrained", lambda *a, **k: (model(*a, **k), loaded.append(True))[0]
    )
    status, document, output = bench(*arguments(tiny_model, prompt_file))
    assert status == 1 and not document["correct"]
    peer = engines(document)["transformers"]
    assert not peer["right"] and "decode_tokens_per_second" not in peer
    assert engines(document)["hybrid"]["decode_tokens_per_second"] > 0
    assert all("transformers" not in p["total_s"] for p in document["results"]["prompts"])
    assert "differs" in output


def test_drafting_that_differs_gets_no_speed(
    bench: Any, tiny_model: Path, prompt_file: Path, broken_runner: None
) -> None:
    options = ("--without-transformers", "--drafter", "ptd")
    status, document, output = bench(*arguments(tiny_model, prompt_file, *options))
    assert status == 1 and not document["correct"]
    drafted = engines(document)["ptd"]
    assert not drafted["right"] and "decode_tokens_per_second" not in drafted
    assert engines(document)["plain"]["decode_tokens_per_second"] > 0
    assert "ptd differs from our plain decoding: few few/0" in output


def test_without_a_reference_that_repeats_itself_nobody_gets_a_speed(
    bench: Any, tiny_model: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.contestants import Ours, Timed

    generate = Ours.generate
    calls: list[Ours] = []

    def unsteady(self: Ours, prompt: list[int], max_new_tokens: int) -> Timed:
        timed = generate(self, prompt, max_new_tokens)
        calls.append(self)
        if self is calls[0] and calls.count(self) > 4:  # warm-up and the first repeat are over
            timed.token_ids[-1] = (timed.token_ids[-1] + 1) % 256
        return timed

    monkeypatch.setattr(Ours, "generate", unsteady)
    status, document, _ = bench(*arguments(tiny_model, prompt_file))
    assert status == 1 and not document["correct"]
    for entry in engines(document).values():
        assert not entry["right"] and "decode_tokens_per_second" not in entry
        assert "prefill_s" not in entry
    assert all(p["total_s"] == {} for p in document["results"]["prompts"])
    found = document["results"]["differences"]
    assert [(d["engine"], d["position"]) for d in found] == [("plain", NEW_TOKENS - 1)] * 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--llama-python", "python3"], "--llama-gguf"),
        (["--llama-python", "nowhere/python", "--llama-gguf", "x.gguf"], "nowhere/python"),
        (["--llama-python", sys.executable, "--llama-gguf", "nowhere.gguf"], "nowhere.gguf"),
        (["--prefill-tokens", 128], "--prefill-tokens=128"),
    ],
)
def test_what_cannot_be_compared_is_named(
    bench: Any, tiny_model: Path, prompt_file: Path, options: list[object], named: str
) -> None:
    more = ["--without-transformers", *options]
    status, document, output = bench(*arguments(tiny_model, prompt_file, *more))
    assert status == 2 and document == {}
    assert output.startswith("error: ") and named in output


def test_the_last_words_of_a_peer_that_fails_are_shown(
    bench: Any, tiny_model: Path, prompt_file: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKE_LLAMA))
    monkeypatch.setenv("RECITE", "[broken")
    options = ["--llama-python", sys.executable, "--llama-gguf", gguf]
    status, document, output = bench(*arguments(tiny_model, prompt_file, *options))
    assert status == 2 and document == {}
    assert "JSONDecodeError" in output and "--llama-gguf" in output
