"""A context whose cache does not fit in memory is refused before it is tried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

import ptd_engine.hf
from ptd_engine import LLM, ConfigError, kv_cache, text
from ptd_engine.kv_cache import KVCache, available_bytes, row_bytes
from ptd_engine.model import CausalLM
from ptd_engine.testing import tiny


@pytest.fixture
def tokenizer() -> text.Tokenizer:
    backend = Backend(models.BPE(vocab={chr(97 + i): i for i in range(26)}, merges=[]))
    backend.decoder = decoders.Fuse()
    return text.Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), ())


def leave(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    real = kv_cache.available_bytes  # of "meta", on which plans are made, nothing is known
    monkeypatch.setattr(
        kv_cache,
        "available_bytes",
        lambda on: real(on) if torch.device(on).type == "meta" else count,
    )


def row_of(model: CausalLM) -> int:
    config = model.config
    return row_bytes(config.num_layers, config.num_kv_heads, config.head_dim, model.dtype)


def test_the_message_has_the_length_both_amounts_and_what_to_do(
    tiny_llama: CausalLM, tokenizer: text.Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 10_000_000 * row_of(tiny_llama)
    leave(monkeypatch, needed - 1)
    with pytest.raises(ConfigError) as raised:
        LLM.from_model(tiny_llama, tokenizer, max_seq_len=10_000_000)
    said = str(raised.value)
    assert said.startswith("max_seq_len=10000000 does not fit in memory")
    assert f"({needed} bytes)" in said and f"({needed - 1} bytes) are available on cpu" in said
    assert "A cache of 9999999 tokens would fit. Ask for less with max_seq_len" in said
    leave(monkeypatch, 2**40)
    assert LLM.from_model(tiny_llama, tokenizer, max_seq_len=64).engine.max_seq_len == 64


def test_it_is_refused_before_weights_are_read(
    tiny_dir: Callable[[str], Path], tokenizer: text.Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(monkeypatch, 10**6)
    monkeypatch.setattr(text, "load_tokenizer", lambda path: tokenizer)  # the directory has none
    read: list[object] = []
    monkeypatch.setattr("ptd_engine.llm.load_model", lambda *args, **kwargs: read.append(args))
    said = r"^max_seq_len=10000000 .*\(1000000 bytes\) are available"
    with pytest.raises(ConfigError, match=said):
        LLM.from_pretrained(str(tiny_dir("llama3")), max_seq_len=10_000_000)
    assert read == []


def test_a_cache_that_the_allocator_refuses_names_no_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator")

    monkeypatch.setattr(torch, "zeros", no_memory)
    with pytest.raises(ConfigError, match="160 rows .*less with max_seq_len") as raised:
        KVCache(2, 2, 160, 16, torch.float32, "cpu")
    assert "enforce" not in str(raised.value)


def test_a_model_of_transformers_is_refused_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.build("llama3", seed=4)
    prompt = torch.tensor([[5, 9, 11]])
    leave(monkeypatch, 1000)
    with pytest.raises(ConfigError, match="does not fit in memory.*1000 bytes"):
        model.generate(prompt, custom_generate=ptd_engine.hf.generate, max_new_tokens=5)
    monkeypatch.undo()
    assert model.generate(
        prompt, custom_generate=ptd_engine.hf.generate, max_new_tokens=5
    ).shape == (1, 8)


def test_what_is_available_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = available_bytes("cpu")
    assert found is None or 2**20 < found < 2**50
    assert available_bytes("meta") is None  # `ptd-engine plan` sizes a cache there
    KVCache(1, 1, 2**40, 1, torch.float32, "meta")
    group = tmp_path / "group"
    group.mkdir()
    files = (str(group), "memory.max", "memory.current", "inactive_file")
    monkeypatch.setattr(kv_cache, "_CGROUPS", (files,))
    assert available_bytes("cpu") is not None or found is None  # no such files: the machine's
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("5000000\n")
    (group / "memory.stat").write_text("anon 4000000\nfile 900000\ninactive_file 700000\n")
    assert available_bytes("cpu") != 0
    (group / "memory.max").write_text("6000000\n")
    assert available_bytes("cpu") == 1_700_000
    with pytest.raises(ConfigError, match="1700000 bytes"):
        KVCache(1, 1, 1_700_001, 1, torch.uint8, "cpu")


@pytest.mark.parametrize("value", [1, 0, -5, 2**24 + 1, True, 1.5, "64", None])
def test_a_length_that_is_none_is_named(
    tiny_llama: CausalLM, tokenizer: text.Tokenizer, value: Any
) -> None:
    with pytest.raises(ConfigError, match="^max_seq_len=.*an integer from 2"):
        LLM.from_model(tiny_llama, tokenizer, max_seq_len=value)
