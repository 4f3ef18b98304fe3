from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner, Result

from ptd_engine.cli import create_app
from ptd_engine.testing import tiny

EOS = "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
CONTEXT = 192

Run = Callable[..., Result]


def byte_tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    """One token a byte, and the three special tokens of a chat model."""
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>", "<|im_start|>", EOS])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=EOS)
    made.chat_template = template
    return made


def save_model(directory: Path, template: str | None, **changes: Any) -> Path:
    tokenizer = byte_tokenizer(template)
    eos = tokenizer.convert_tokens_to_ids(EOS)
    shape = {"vocab_size": len(tokenizer), "max_position_embeddings": CONTEXT, "eos_token_id": eos}
    tiny.save(tiny.build("llama3", seed=5, **shape, **changes), directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_model(tmp_path_factory.mktemp("chat") / "мо дель ü", TEMPLATE))


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_model(tmp_path_factory.mktemp("base") / "model", None))


@pytest.fixture
def run() -> Run:
    app, runner = create_app(), CliRunner()

    def invoke(*args: object, **options: Any) -> Result:
        return runner.invoke(app, [str(arg) for arg in args], **options)

    return invoke


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def make(name: str, content: str) -> Path:
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        return path

    return make


def json_lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]
