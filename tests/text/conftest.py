"""Tokenizers that several tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from text_samples import byte_level_metadata, sentencepiece_metadata, write_metadata

from ptd_engine import hub
from ptd_engine.text import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("byte-level") / "m.gguf"
    return load_tokenizer(write_metadata(path, byte_level_metadata()))


@pytest.fixture(scope="session")
def sentencepiece_like(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("sentencepiece") / "m.gguf"
    return load_tokenizer(write_metadata(path, sentencepiece_metadata()))


@pytest.fixture(scope="session")
def demo_path() -> Path:
    path = hub.cached_demo()
    if path is None:
        pytest.skip(
            "the demo model is not cached (PTD_DEMO_TEST=1 in tests/test_hub.py fetches it)"
        )
    return path
