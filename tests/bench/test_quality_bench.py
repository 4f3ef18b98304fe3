from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ptd_engine.llm import LLM
from ptd_engine.model import CausalLM

ROOT = Path(__file__).parents[2]
LENGTH = 128  # the context of ptd_engine.testing.tiny


def rows(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["dtype"]: row for row in document["results"]["dtypes"]}


def test_the_figures_are_those_of_transformers(bench: Any, tiny_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    options = ("--dtypes", "bfloat16", "--reference", "float32", "--limit", 100)
    status, document, output = bench("quality", tiny_model, *options)
    assert status == 0 and document["correct"] and document["benchmark"] == "quality"
    found = rows(document)
    assert list(found) == ["float32", "bfloat16"]

    llm = LLM.from_pretrained(str(tiny_model), dtype="float32", drafter="none")
    text = (ROOT / "bench/data/quality.txt").read_text(encoding="utf-8")
    ids = torch.tensor([llm.encode(text)[:100]])
    logits = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=dtype)
        with torch.inference_mode():
            logits[dtype] = model(ids).logits[0, :-1].double()
    wide = {dtype: values.log_softmax(-1) for dtype, values in logits.items()}
    nll = -wide[torch.float32].gather(-1, ids[0, 1:, None]).mean()
    base, other = found["float32"], found["bfloat16"]
    assert base["positions"] == other["positions"] == 99
    assert base["perplexity"] == pytest.approx(math.exp(nll), rel=1e-5)
    assert base["greedy_agreement"] == 1 and base["mean_kl"] == 0
    assert other["perplexity_ratio"] == pytest.approx(other["perplexity"] / base["perplexity"])
    # The two round bfloat16 in places of their own, so their distances from float32 are alike.
    p, q = wide[torch.float32], wide[torch.bfloat16]
    kl = float((p.exp() * (p - q)).sum(-1).mean())
    assert kl / 3 < other["mean_kl"] < 3 * kl
    agreement = float((p.argmax(-1) == q.argmax(-1)).double().mean())
    assert other["greedy_agreement"] == pytest.approx(agreement, abs=0.05)
    assert other["weight_bytes"] < base["weight_bytes"]
    assert "greedy agreement" in output and str(tiny_model.parent) not in output


def test_a_long_text_is_read_in_windows(bench: Any, tiny_model: Path, tmp_path: Path) -> None:
    text = tmp_path / "long.txt"
    text.write_text("one two three " * 30, encoding="utf-8")
    status, document, _ = bench("quality", tiny_model, "--dtypes", "float32", "--text", text)
    assert status == 0
    settings, (row,) = document["settings"], document["results"]["dtypes"]
    assert settings["tokens"] == 420 and settings["windows"] == 4
    assert row["positions"] == 419 and settings["reference"] == "float32"


@pytest.mark.parametrize("count", [2, 127, 128, 129, 255, 256, 300])
def test_windows_predict_every_token_but_the_first_once(bench: Any, count: int) -> None:
    from bench.quality import split

    windows = split(list(range(count)), LENGTH)
    assert all(2 <= len(window) <= LENGTH for window in windows)
    assert [token for window in windows for token in window[1:]] == list(range(1, count))


def test_chunks_and_parts_do_not_change_the_logits(
    bench: Any, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench import quality

    model = LLM.from_pretrained(str(tiny_model), dtype="float32", drafter="none").model
    ids = [(7 * i) % 250 for i in range(60)]

    def run() -> tuple[torch.Tensor, list[int]]:
        parts = [(part.clone(), known) for part, known in quality.teacher_forced(model, ids)]
        return torch.cat([part for part, _ in parts]), [t for _, known in parts for t in known]

    whole, targets = run()
    monkeypatch.setattr(quality, "PREFILL_CHUNK", 16)
    monkeypatch.setattr(quality, "_LOGIT_ROWS", 5)
    pieces, same_targets = run()
    assert targets == same_targets == ids[1:]
    torch.testing.assert_close(pieces, whole, rtol=1e-5, atol=1e-5)


def test_a_model_that_breaks_gets_no_figures(
    bench: Any, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = CausalLM.logits

    def faulty(self: CausalLM, hidden: Any, out: Any) -> Any:
        found = logits(self, hidden, out)
        return found * float("nan") if self.dtype == torch.bfloat16 else found

    monkeypatch.setattr(CausalLM, "logits", faulty)
    status, document, output = bench(
        "quality", tiny_model, "--limit", 30, "--dtypes", "float32,bfloat16"
    )
    assert status == 1 and not document["correct"]
    assert rows(document)["float32"]["perplexity"] > 0
    assert not rows(document)["bfloat16"]["finite"]
    assert "perplexity" not in rows(document)["bfloat16"]
    assert "bfloat16: a logit is not finite" in output


def test_the_text_is_a_page_of_prose_code_and_numbers(bench: Any) -> None:
    from bench.quality import TEXT

    text = TEXT.read_text(encoding="utf-8")
    assert 1100 <= len(text.split()) <= 1400
    assert "def " in text and sum(c.isdigit() for c in text) > 100 and text.isascii()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--dtypes", "float31"], "float31"),
        (["--text", "nowhere.txt"], "nowhere.txt"),
        (["--limit", 1], "--text"),
    ],
)
def test_what_cannot_be_measured_is_named(
    bench: Any, tiny_model: Path, options: list[object], named: str
) -> None:
    status, document, output = bench("quality", tiny_model, *options)
    assert status == 2 and document == {}
    assert output.startswith("error: ") and named in output
