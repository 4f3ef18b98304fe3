"""A chat template is found wherever a model directory keeps it, and writes BOS once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ptd_engine.errors import PromptError
from ptd_engine.text import Tokenizer, load_tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
OTHER = "{{ messages[0].content }} with tools"
MESSAGES = [{"role": "user", "content": "the dog"}]


@pytest.fixture
def directory(sentencepiece_like: Tokenizer, tmp_path: Path) -> Path:
    sentencepiece_like.hf.save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def store(directory: Path, where: str, template: Any) -> None:
    if where == "chat_template.jinja":
        (directory / where).write_text(template, encoding="utf-8")
        return
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))


@pytest.mark.parametrize(
    ("where", "template"),
    [
        ("chat_template.jinja", TEMPLATE),
        ("tokenizer_config.json", TEMPLATE),
        (
            "tokenizer_config.json",
            [{"name": "tool_use", "template": OTHER}, {"name": "default", "template": TEMPLATE}],
        ),
    ],
)
def test_template_of_a_directory(where: str, template: Any, directory: Path) -> None:
    assert not load_tokenizer(directory).has_chat_template
    store(directory, where, template)
    tokenizer = load_tokenizer(directory)
    assert tokenizer.has_chat_template
    assert tokenizer.render_chat(MESSAGES) == "<s>[user]the dog[assistant]"
    ids = tokenizer.apply_chat_template(MESSAGES)
    assert tokenizer.encode("the dog")[0] == tokenizer.bos_token_id  # a text does get one
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1


def test_the_file_of_its_own_wins(directory: Path) -> None:
    store(directory, "tokenizer_config.json", OTHER)
    store(directory, "chat_template.jinja", TEMPLATE)
    assert load_tokenizer(directory).render_chat(MESSAGES) == "<s>[user]the dog[assistant]"


def test_named_templates_without_a_default_are_no_crash(directory: Path) -> None:
    store(directory, "tokenizer_config.json", [{"name": "tool_use", "template": OTHER}])
    tokenizer = load_tokenizer(directory)
    with pytest.raises(PromptError, match="chat template"):
        tokenizer.apply_chat_template(MESSAGES)


def test_template_that_is_no_jinja_is_named(directory: Path) -> None:
    store(directory, "chat_template.jinja", "{% for m in %}")
    with pytest.raises(PromptError, match="chat template refuses"):
        load_tokenizer(directory).apply_chat_template(MESSAGES)
