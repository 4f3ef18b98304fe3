"""generation_config.json: what is read, what is refused, and what would be in force."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from ptd_engine.checkpoint.generation_defaults import (
    GenerationDefaults,
    load_generation_defaults,
)
from ptd_engine.errors import CheckpointError

QWEN = {
    "bos_token_id": 151643,
    "do_sample": True,
    "eos_token_id": [151645, 151643],
    "repetition_penalty": 1.1,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.8,
    "transformers_version": "4.37.0",
}


def test_a_published_file() -> None:
    assert GenerationDefaults.from_hf(QWEN) == GenerationDefaults(
        do_sample=True, temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.1
    )


def test_silence_is_none() -> None:
    defaults = GenerationDefaults.from_hf({"eos_token_id": 2})
    assert defaults == GenerationDefaults()
    assert defaults.taken({}) == {"temperature": 0.0}
    nulls = dict.fromkeys((f.name for f in dataclasses.fields(GenerationDefaults)), None)
    assert GenerationDefaults.from_hf({**nulls, "stop_strings": None}) == GenerationDefaults()


def test_lengths_and_stop_strings() -> None:
    read = GenerationDefaults.from_hf(
        {"max_new_tokens": 2048, "max_length": 4096, "stop_strings": ["a", "b"]}
    )
    assert (read.max_new_tokens, read.max_length, read.stop) == (2048, 4096, ("a", "b"))
    assert GenerationDefaults.from_hf({"stop_strings": "END"}).stop == ("END",)
    assert read.taken({}) == {"temperature": 0.0, "max_new_tokens": 2048, "stop": ("a", "b")}


def test_defaults_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        GenerationDefaults().top_k = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("do_sample", "true"),
        ("do_sample", 1),
        ("temperature", -0.1),
        ("temperature", "0.7"),
        ("temperature", math.nan),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0),
        ("top_p", 1.01),
        ("min_p", -0.1),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("repetition_penalty", math.inf),
        ("max_new_tokens", 0),
        ("max_length", "long"),
        ("stop_strings", [1]),
        ("stop_strings", ["a", ""]),
    ],
)
def test_bad_values_name_file_and_key(key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=rf"generation_config\.json: {key}=.*not valid"):
        GenerationDefaults.from_hf({**QWEN, key: value})


@pytest.mark.parametrize(
    ("config", "explicit", "wanted"),
    [
        (
            QWEN,
            {},
            {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1},
        ),
        # Without do_sample the rest says nothing, but for the penalty.
        ({**QWEN, "do_sample": False}, {}, {"temperature": 0.0, "repetition_penalty": 1.1}),
        ({**QWEN, "do_sample": None}, {}, {"temperature": 0.0, "repetition_penalty": 1.1}),
        ({"temperature": 0.9, "top_p": 0.6}, {}, {"temperature": 0.0}),
        ({"do_sample": True}, {}, {"temperature": 1.0}),
        ({"do_sample": True, "temperature": 0, "top_k": 5}, {}, {"temperature": 0.0}),
        # What is off is not worth a word.
        ({"do_sample": True, "top_k": 0, "top_p": 1.0, "min_p": 0}, {}, {"temperature": 1.0}),
        ({"repetition_penalty": 1.0}, {}, {"temperature": 0.0}),
        # The request wins; a temperature of 0 is greedy, without the file's filters.
        (QWEN, {"temperature": 0.0}, {"repetition_penalty": 1.1}),
        (QWEN, {"temperature": 1.5, "top_k": 0}, {"top_p": 0.8, "repetition_penalty": 1.1}),
        (QWEN, {"repetition_penalty": 1.0, "top_p": 1.0}, {"temperature": 0.7, "top_k": 20}),
        ({"max_new_tokens": 9}, {"max_new_tokens": 4, "temperature": 0.0}, {}),
        # A request that samples from a greedy model brings its own filters.
        ({"temperature": 0.9, "top_p": 0.6}, {"temperature": 0.5}, {}),
    ],
)
def test_what_a_request_takes(
    config: dict[str, Any], explicit: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert GenerationDefaults.from_hf(config).taken(explicit) == wanted


def test_settings_without_a_place_are_named() -> None:
    config = {
        "no_repeat_ngram_size": 3,
        "suppress_tokens": [5],
        "num_beams": 4,
        "typical_p": 0.9,
        "presence_penalty": 1.5,
        "use_cache": True,
        "pad_token_id": 0,
        "chat_format": "chatml",
    }
    named = {"no_repeat_ngram_size", "suppress_tokens", "num_beams", "presence_penalty"}
    assert set(GenerationDefaults.from_hf(config).unsupported) == named
    sampled = GenerationDefaults.from_hf({**config, "do_sample": True})
    assert set(sampled.unsupported) == {*named, "typical_p"}


def test_what_transformers_writes_without_being_asked_is_silent() -> None:
    from transformers import GenerationConfig

    for config in (GenerationConfig(), GenerationConfig(do_sample=False, eos_token_id=2)):
        assert GenerationDefaults.from_hf(config.to_dict()) == GenerationDefaults()
    # Version 4 wrote the values under which a setting does nothing.
    neutral = {
        "num_beams": 1,
        "num_beam_groups": 1,
        "num_return_sequences": 1,
        "min_length": 0,
        "typical_p": 1.0,
        "epsilon_cutoff": 0.0,
        "eta_cutoff": 0.0,
        "diversity_penalty": 0.0,
        "repetition_penalty": 1.0,
        "encoder_repetition_penalty": 1.0,
        "length_penalty": 1.0,
        "no_repeat_ngram_size": 0,
        "encoder_no_repeat_ngram_size": 0,
        "bad_words_ids": None,
    }
    read = GenerationDefaults.from_hf({**neutral, "do_sample": True})
    assert read.unsupported == ()
    assert read.taken({}) == {"temperature": 1.0}


def test_directories_and_files(tmp_path: Path) -> None:
    assert load_generation_defaults(tmp_path) == GenerationDefaults()
    (tmp_path / "generation_config.json").write_text(json.dumps(QWEN))
    assert load_generation_defaults(tmp_path) == GenerationDefaults.from_hf(QWEN)
    assert load_generation_defaults(tmp_path / "m.gguf") == GenerationDefaults()
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"generation_config\.json holds no JSON object"):
        load_generation_defaults(tmp_path)
