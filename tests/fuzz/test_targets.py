"""Every target, with what was found before and with a fixed number of inputs more."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
# As many as take a few seconds each; `python -m fuzz.explore` goes on from there.
RUNS = {
    "safetensors": 3000,
    "index": 2000,
    "config": 800,
    "generation_config": 3000,
    "gguf": 500,
    "tokenizer": 500,
    "request": 8000,
}


@pytest.fixture(autouse=True)
def _quiet() -> object:
    logging.disable(logging.CRITICAL)  # a warning about each of thousands of broken files
    yield
    logging.disable(logging.NOTSET)


def run(name: str, data: bytes) -> None:
    try:
        TARGETS[name](data)
    except BaseException as error:
        error.add_note(f"the input: fuzz.targets.{name}(bytes.fromhex({data.hex()!r}))")
        raise


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_is_read(name: str) -> None:
    files = sorted((CORPUS / name).iterdir())
    assert files
    for file in files:
        run(name, file.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.filterwarnings("ignore")
def test_changed_documents_are_read_or_refused(name: str) -> None:
    rng = random.Random(20)
    for _ in range(RUNS[name]):
        run(name, b"\1" + rng.randbytes(rng.randrange(4, 40)))


def test_every_target_has_its_number_of_runs() -> None:
    assert RUNS.keys() == TARGETS.keys()
