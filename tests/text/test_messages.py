"""Messages of a conversation: what a chat template would pass over in silence is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ptd_engine.errors import PromptError
from ptd_engine.text import Tokenizer, load_tokenizer

ANY_ROLE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
# Knows developer and tool messages, tool calls and thoughts, and trims what it writes.
WITH_TOOLS = """
{%- for m in messages %}
{%- if m.role == 'developer' %}[system]{{ m.content | trim }}
{%- elif m.role == 'tool' %}[tool {{ m.name }}]{{ m.content | tojson }}
{%- elif m.tool_calls %}[call]{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}
{%- else %}[{{ m.role }}]{{ m.reasoning_content }}{{ m.content | trim }}{% endif %}
{%- endfor %}"""
# Passes over everything that it has no branch for.
PARTICULAR = """
{%- for m in messages %}
{%- if m.role == 'user' %}[INST]{{ m.content }}[/INST]
{%- elif m.role == 'assistant' %}{{ m.content.split('</think>')[-1] }}{% endif %}
{%- endfor %}"""
USER = {"role": "user", "content": "the dog"}
CALL = {"type": "function", "function": {"name": "look", "arguments": {"at": "dog"}}}


@pytest.fixture
def load(sentencepiece_like: Tokenizer, tmp_path: Path) -> Any:
    sentencepiece_like.hf.save_pretrained(tmp_path / "m")

    def load(template: str) -> Tokenizer:
        (tmp_path / "m" / "chat_template.jinja").write_text(template, encoding="utf-8")
        return load_tokenizer(tmp_path / "m")

    return load


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], r"^messages=\[\] .*non-empty list"),
        ("hi", r"^messages='hi' .*\"content\": text.*generate\(text\)"),
        (USER, r"^messages=\{.*non-empty list"),
        (None, "^messages=None"),
        ([USER, "hi"], r"^messages\[1\]='hi' .*a dict"),
        ([{"content": "x"}], r"^messages\[0\]\['role'\]=None .*'user'"),
        ([{"role": "", "content": "x"}], r"\['role'\]=''"),
        ([{"role": "uesr", "content": "x"}], r"\['role'\]='uesr' .*'system', 'user'"),
        ([{"role": "developer", "content": "x"}], r"\['role'\]='developer'.*Write 'system'"),
        ([{"role": "user"}], r"^messages\[0\]\['content'\]=None .*a string"),
        ([{"role": "user", "content": 3}], r"\['content'\]=3"),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}]}], "Join the texts"),
        ([{"role": "tool", "content": {"a": 1}}], r"json\.dumps"),
        ([{**USER, "contnet": "x"}], r"^messages\[0\]\['contnet'\]='x' .*reads.*Leave it out"),
        ([{**USER, "images": ["x.png"]}], r"\['images'\]=\['x.png'\]"),
        ([{"role": "assistant", "content": "", "tool_calls": [CALL]}], r"\['tool_calls'\]=\[\{"),
        ([{"role": "assistant", "content": "", "tool_calls": "look"}], r"\['tool_calls'\]='look'"),
        ([{"role": "assistant", "tool_calls": []}], r"\['content'\]=None"),
    ],
)
def test_bad_messages_are_named(load: Any, messages: Any, said: str) -> None:
    tokenizer = load(ANY_ROLE)
    with pytest.raises(PromptError, match=said):
        tokenizer.apply_chat_template(messages)
    assert tokenizer.render_chat([USER]) == "[user]the dog"


def test_what_is_common_may_stand_where_no_template_reads_it(load: Any) -> None:
    message = {
        **USER,
        "name": "Ann",
        "tool_call_id": "1",
        "reasoning_content": "hm",
        "thinking": "hm",
        "tool_calls": None,
        "refusal": None,  # as clients that dump whole objects have it
    }
    for role in ("system", "user", "assistant", "tool"):
        written = load(ANY_ROLE).render_chat([{**message, "role": role}])
        assert written == f"[{role}]the dog"


@pytest.mark.parametrize("call", [CALL, {**CALL, "id": "1"}])
def test_tools_and_thoughts_reach_a_template_that_knows_them(load: Any, call: Any) -> None:
    messages = [
        {"role": "developer", "content": " be brief\n"},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "assistant", "content": "left out beside a call", "tool_calls": [call]},
        {"role": "tool", "name": "look", "tool_call_id": "1", "content": 'a "small" dog'},
        {"role": "assistant", "content": " a dog ", "reasoning_content": "hm "},
    ]
    called = "[call]" + json.dumps(call["function"])
    assert load(WITH_TOOLS).render_chat(messages) == (
        f'[system]be brief[user]the dog{called * 3}[tool look]"a \\"small\\" dog"'
        "[assistant]hm a dog"
    )


@pytest.mark.parametrize("role", ["system", "tool"])
def test_a_message_that_the_template_passes_over_is_refused(load: Any, role: str) -> None:
    tokenizer = load(PARTICULAR)
    with pytest.raises(PromptError, match=rf"messages\[1\] \(role '{role}'\).*passes over it"):
        tokenizer.render_chat([USER, {"role": role, "content": "be brief"}, USER])
    thought = {"role": "assistant", "content": "<think>hm</think> a dog"}
    assert tokenizer.render_chat([USER, thought]) == "[INST]the dog[/INST] a dog"


def test_a_template_that_is_particular_about_a_text_is_believed(load: Any) -> None:
    tokenizer = load(
        "{% for m in messages %}{% if m.content not in ['A', 'B'] %}"
        "{{ raise_exception('A or B') }}{% endif %}{{ m.content | lower }}{% endfor %}"
    )
    assert tokenizer.render_chat([{"role": "user", "content": "A"}]) == "a"
    with pytest.raises(PromptError, match="A or B"):
        tokenizer.render_chat([{"role": "user", "content": "C"}])
