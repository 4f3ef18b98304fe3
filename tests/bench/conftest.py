from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptd_engine.runner import EagerRunner
from ptd_engine.testing import tiny

ROOT = Path(__file__).parents[2]
VOCABULARY = 300  # 256 bytes and some rows that no text reaches, as in real models
PROMPTS = ("ab ab ab ab", "count: 1, 2, 3, 4", "x")

Bench = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a byte-level tokenizer that has no merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("tiny-model")
    model = tiny.build("llama3", vocab_size=VOCABULARY, eos_token_id=299, bos_token_id=None)
    tiny.save(model, path)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def prompt_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "few.jsonl"
    rows = [{"id": f"few/{i}", "turns": [text]} for i, text in enumerate(PROMPTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    """Run a benchmark; returns its exit status, its document (the last line) and all it printed.

    Arguments become strings. The bandwidth is measured on a small array: no test checks a speed.
    """
    monkeypatch.syspath_prepend(str(ROOT))
    from bench import environment
    from bench.__main__ import main

    def small_read(device: Any, nbytes: int = 2**20) -> environment.ReadBandwidth:
        return measured(device, 2**20)

    measured = environment.read_bandwidth
    monkeypatch.setattr(environment, "read_bandwidth", small_read)
    monkeypatch.setattr("bench.step.read_bandwidth", small_read)

    def run(*arguments: object) -> tuple[int, dict[str, Any], str]:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        last = printed.out.rstrip("\n").rpartition("\n")[2]
        return status, json.loads(last) if last else {}, printed.out + printed.err

    return run


@pytest.fixture
def broken_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel fault: with more than one row the root's token is off by one."""
    wait = EagerRunner.wait

    def faulty(self: EagerRunner) -> Any:
        output = np.array(wait(self))
        if len(output) > 1:
            output[0, 0] = (output[0, 0] + 1) % 256
        return output

    monkeypatch.setattr(EagerRunner, "wait", faulty)
