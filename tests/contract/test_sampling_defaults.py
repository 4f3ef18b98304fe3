"""What generation_config.json does to requests, and how to have it do nothing."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from ptd_engine import LLM, ConfigError, SamplingParams
from ptd_engine.testing import tiny

FILE = {"do_sample": True, "temperature": 0.7, "top_k": 20, "repetition_penalty": 1.6}
PROMPT = [5, 9, 11, 3, 9]
GREEDY = SamplingParams(
    max_new_tokens=90, temperature=0.0, repetition_penalty=1.0, top_k=0, top_p=1.0, min_p=0.0
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("defaults") / "model"
    tiny.save(tiny.build("llama3", seed=3), directory)
    backend = Tokenizer(models.WordLevel({f"t{i}": i for i in range(97)}, unk_token="t0"))
    backend.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(directory)
    return directory


def load(model: Path, config: dict[str, Any] | None, **options: Any) -> LLM:
    path = model / "generation_config.json"
    path.unlink(missing_ok=True)
    if config is not None:
        path.write_text(json.dumps(config))
    return LLM.from_pretrained(str(model), **options)


def ids(llm: LLM, params: SamplingParams | None) -> list[int]:
    return llm.generate(PROMPT, params).token_ids


def test_the_file_fills_what_is_open_and_says_so(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        llm = load(model, {**FILE, "max_new_tokens": 60, "no_repeat_ngram_size": 3})
    said = [record.message for record in caplog.records]
    assert len(said) == 2
    for word in ("temperature=0.7", "top_k=20", "repetition_penalty=1.6", "max_new_tokens=60"):
        assert word in said[0]
    assert "generation_config='none'" in said[0]
    assert "no_repeat_ngram_size" in said[1]
    written = SamplingParams(
        max_new_tokens=60, temperature=0.7, top_k=20, repetition_penalty=1.6, top_p=1, min_p=0
    )
    expected = ids(llm, written)
    assert ids(llm, None) == ids(llm, SamplingParams()) == expected
    assert ids(llm.with_drafter("none"), None) == expected
    # It made a difference, each part of it.
    for part in ({"temperature": 1.0}, {"top_k": 0}, {"repetition_penalty": 1.0}):
        assert ids(llm, SamplingParams(**part)) != expected


def test_what_a_request_sets_wins(model: Path) -> None:
    llm = load(model, FILE)
    params = llm.resolve(SamplingParams(top_k=3, max_new_tokens=None))
    assert (params.top_k, params.temperature, params.max_new_tokens) == (3, 0.7, None)
    assert params.repetition_penalty == 1.6
    off = llm.resolve(SamplingParams(repetition_penalty=1.0, top_k=0))
    assert (off.repetition_penalty, off.top_k) == (1.0, 0)


def test_temperature_0_stays_greedy(model: Path) -> None:
    llm, without = load(model, FILE), load(model, FILE, generation_config="none")
    free: dict[str, Any] = {"max_new_tokens": 90, "ignore_eos": True, "temperature": 0.0}
    cold = SamplingParams(repetition_penalty=1.0, **free)
    assert llm.resolve(cold).top_k == 0
    assert ids(llm, cold) == ids(without, SamplingParams(**free))
    # The penalty is no part of sampling: it holds for a greedy request, too.
    penalised = ids(llm, SamplingParams(**free))
    assert penalised != ids(llm, cold)
    assert penalised == ids(without, SamplingParams(repetition_penalty=1.6, **free))


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (FILE, {"generation_config": "none"}),
        (None, {}),
        ({}, {}),
        ({"temperature": 0.7, "top_k": 20}, {}),  # without do_sample it is greedy
    ],
)
def test_otherwise_an_open_request_is_greedy_and_nothing_is_said(
    model: Path,
    config: dict[str, Any] | None,
    options: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        llm = load(model, config, **options)
    assert caplog.records == []
    assert ids(llm, SamplingParams(max_new_tokens=90)) == ids(llm, GREEDY)
    assert llm.resolve().max_new_tokens == 128
    with pytest.raises(ConfigError, match="top_p=0.9.*temperature is 0"):
        llm.generate(PROMPT, SamplingParams(top_p=0.9))


def test_another_switch_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="generation_config='vllm'.*'auto' or 'none'"):
        load(model, None, generation_config="vllm")
