"""Hugging Face directories, the union of EOS ids, and the errors of the text layer."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ptd_engine.errors import CheckpointError, PromptError
from ptd_engine.text import Tokenizer, eos_union, load_tokenizer


@pytest.fixture
def directory(byte_level: Tokenizer, tmp_path: Path) -> Path:
    path = tmp_path / "мо дель ü"
    byte_level.hf.save_pretrained(path)
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 7}))
    return path


def test_directory_gives_the_same_tokenizer(byte_level: Tokenizer, directory: Path) -> None:
    loaded = load_tokenizer(f"{directory}/")
    text = "Hello  world 123 <|im_end|> 世界"
    assert loaded.encode(text) == byte_level.encode(text)
    assert loaded.decode(loaded.encode(text)) == byte_level.decode(byte_level.encode(text))
    assert loaded.eos_token_ids == (2,)
    assert loaded.bos_token_id == 1
    assert not loaded.has_chat_template


def test_vocab_size_is_the_end_of_the_ids(byte_level: Tokenizer, directory: Path) -> None:
    stored = json.loads((directory / "tokenizer.json").read_text())
    last = max(stored["model"]["vocab"].values())
    assert load_tokenizer(directory).vocab_size == last + 1
    added = load_tokenizer(directory)
    added.hf.add_tokens(["<new one>", "<new two>"])
    assert Tokenizer(added.hf, ()).vocab_size == last + 3
    assert added.hf.vocab_size == last + 1  # transformers leaves the added ones out
    # A gap in the ids: more ids than tokens.
    stored["added_tokens"].append(
        {**stored["added_tokens"][0], "id": last + 50, "content": "<far away>"}
    )
    stored["model"]["vocab"]["<far away>"] = last + 50
    (directory / "tokenizer.json").write_text(json.dumps(stored))
    loaded = load_tokenizer(directory)
    assert loaded.encode("<far away>", add_special_tokens=False) == [last + 50]
    assert loaded.vocab_size == last + 51


def test_truncation_stored_in_the_file_is_not_applied(directory: Path) -> None:
    stored = json.loads((directory / "tokenizer.json").read_text())
    stored["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (directory / "tokenizer.json").write_text(json.dumps(stored))
    assert len(load_tokenizer(directory).encode("x " * 50)) >= 50


@pytest.mark.parametrize(
    ("sources", "wanted"),
    [
        # config 151645, generation_config [151645, 151643]
        ((151645, [151645, 151643]), (151645, 151643)),
        # generation_config lists only endoftext, the tokenizer ends turns with im_end
        ((None, [10], 11), (10, 11)),
        ((None, None, None), ()),
        ((0,), (0,)),
        (((5,), [6, 5]), (5, 6)),
    ],
)
def test_eos_union(sources: tuple[int | list[int] | None, ...], wanted: tuple[int, ...]) -> None:
    assert eos_union(*sources) == wanted


@pytest.mark.parametrize("bad", [-1, [3, -2], ["</s>"], [True]])
def test_eos_union_refuses_other_things(bad: object) -> None:
    with pytest.raises(CheckpointError, match="eos_token_id"):
        eos_union(bad)  # type: ignore[arg-type]


def test_a_spelled_bos_is_kept_beside_the_added_one(sentencepiece_like: Tokenizer) -> None:
    assert sentencepiece_like.encode("<s>the")[:2] == [1, 1]
    assert sentencepiece_like.encode("<s>the", add_special_tokens=False)[0] == 1


def test_lone_surrogate_is_a_prompt_error(byte_level: Tokenizer) -> None:
    with pytest.raises(PromptError, match="surrogate"):
        byte_level.encode("a\ud800b")


def test_missing_template_and_refused_messages(byte_level: Tokenizer) -> None:
    with pytest.raises(PromptError, match="no chat template"):
        byte_level.apply_chat_template([{"role": "user", "content": "hi"}])
    hf = copy.deepcopy(byte_level.hf)
    hf.chat_template = (
        "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}x"
    )
    with_template = Tokenizer(hf, ())
    with pytest.raises(PromptError, match="user first"):
        with_template.apply_chat_template([{"role": "system", "content": "s"}])
    with pytest.raises(PromptError, match="messages"):
        with_template.apply_chat_template([])


def test_unusable_paths(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not found"):
        load_tokenizer(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        load_tokenizer(tmp_path / "empty")
    (tmp_path / "empty" / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_tokenizer(tmp_path / "empty")


def test_template_variables_and_tools_reach_the_template(byte_level: Tokenizer) -> None:
    byte_level.hf.chat_template = (
        "{% if tools %}[{{ tools[0]['name'] }}]{% endif %}{{ messages[0]['content'] }}"
        "{% if enable_thinking %}<think>{% endif %}"
    )
    messages = [{"role": "user", "content": "hi"}]
    assert byte_level.render_chat(messages) == "hi"
    thinking = byte_level.render_chat(messages, template_kwargs={"enable_thinking": True})
    assert thinking == "hi<think>"
    assert byte_level.render_chat(messages, tools=[{"name": "clock"}]) == "[clock]hi"


def test_what_a_template_does_not_read_is_refused(byte_level: Tokenizer) -> None:
    byte_level.hf.chat_template = "{{ messages[0]['content'] }}"
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(PromptError, match="template_kwargs='enable_thinking'.*template reads"):
        byte_level.render_chat(messages, template_kwargs={"enable_thinking": True})
    with pytest.raises(PromptError, match="tools=.*clock.*does not read them"):
        byte_level.render_chat(messages, tools=[{"name": "clock"}])


@pytest.mark.parametrize("name", ["messages", "tools", "tokenize", "chat_template"])
def test_variables_that_are_set_already_are_refused_as_such(
    byte_level: Tokenizer, name: str
) -> None:
    byte_level.hf.chat_template = "{{ messages[0]['content'] }}{{ tools }}"
    with pytest.raises(PromptError, match=f"template_kwargs='{name}'.*sets already"):
        byte_level.render_chat([{"role": "user", "content": "hi"}], template_kwargs={name: True})


def test_template_variables_are_a_mapping(byte_level: Tokenizer) -> None:
    byte_level.hf.chat_template = "{{ messages[0]['content'] }}"
    wrong: Any = [1]
    with pytest.raises(PromptError, match=r"template_kwargs=\[1\].*a mapping"):
        byte_level.render_chat([{"role": "user", "content": "hi"}], template_kwargs=wrong)
