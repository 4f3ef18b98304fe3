"""What a conversation may hold: a chat template passes over what it does not know in silence, and
the answer would be one to something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ptd_engine.errors import PromptError

Message = Mapping[str, Any]

ROLES = ("system", "user", "assistant", "tool")
# Beside tool_calls. Templates of models without tools or thoughts do without, to no harm.
_KEYS = ("role", "content", "name", "tool_call_id", "reasoning_content", "reasoning", "thinking")


def check_messages(messages: object, reads: Callable[[str], bool]) -> None:
    """Check a conversation before it is rendered.

    Args:
        messages: what the user gave.
        reads: whether the chat template mentions a name.

    Raises:
        PromptError: no list of dicts; a role or a key that is neither common nor in the template;
            content that is no text; tool calls where the template has none.
    """
    if isinstance(messages, str):
        hint = 'Write [{"role": "user", "content": text}], or generate(text) for a completion.'
        raise PromptError.for_field("messages", messages, _ALLOWED, hint)
    if isinstance(messages, bytes | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise PromptError.for_field("messages", messages, _ALLOWED)
    for index, message in enumerate(messages):
        at = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise PromptError.for_field(at, message, 'a dict {"role": ..., "content": ...}')
        _check_role(at, message.get("role"), reads)
        _check_keys(at, message, reads)
        _check_content(at, message)


def check_rendered(
    messages: Sequence[Message], text: str, render: Callable[[Sequence[Message]], str]
) -> None:
    """Check that the template wrote every message.

    A message whose content is not in the text is looked for once more by a mark in its place, for a
    template may change a text. Beside tool calls content is often left out: it is not looked for.

    Args:
        messages: as they were rendered.
        text: what came of them.
        render: the template.

    Raises:
        PromptError: naming the first message that the template passes over.
    """
    missing = [
        index
        for index, message in enumerate(messages)
        if not message.get("tool_calls") and message["content"].strip() not in text
    ]
    if not missing:
        return
    marks = {index: f"MESSAGE{index}MARK" for index in missing}
    try:
        marked = render(
            [{**m, "content": marks[i]} if i in marks else m for i, m in enumerate(messages)]
        )
    except PromptError:  # a template that is particular about what it is given has read it
        return
    for index, mark in marks.items():
        if mark not in marked:
            role = messages[index]["role"]
            raise PromptError(
                f"messages[{index}] (role {role!r}) would not reach the model: its chat template "
                "passes over it. Leave it out, or give it a role that the template writes "
                "(`tokenizer.hf.chat_template` shows it)."
            )


_ALLOWED = 'a non-empty list of {"role": ..., "content": ...}'


def _check_role(at: str, role: object, reads: Callable[[str], bool]) -> None:
    if not isinstance(role, str) or not (role in ROLES or (role and reads(role))):
        raise PromptError.for_field(
            f"{at}['role']",
            role,
            f"{', '.join(map(repr, ROLES))}, or another that this model's chat template names",
            "Write 'system' instead." if role == "developer" else "",
        )


def _check_keys(at: str, message: Message, reads: Callable[[str], bool]) -> None:
    for key, value in message.items():
        if value is None or key in _KEYS or (isinstance(key, str) and reads(key)):
            continue
        if key != "tool_calls":
            raise PromptError.for_field(
                f"{at}[{key!r}]",
                value,
                f"nothing: a message has {', '.join(_KEYS)}, tool_calls, and what this model's "
                "chat template reads besides",
                "Leave it out.",
            )
        if value:
            raise PromptError.for_field(
                f"{at}['tool_calls']",
                value,
                "nothing: this model's chat template does not read tool calls",
                "Write the call into the content, or use a model that was trained with tools.",
            )
    calls = message.get("tool_calls")
    if calls is None:
        return
    ok = isinstance(calls, Sequence) and not isinstance(calls, str | bytes)
    if not ok or not all(isinstance(call, Mapping) for call in calls):
        raise PromptError.for_field(f"{at}['tool_calls']", calls, "a list of dicts")


def _check_content(at: str, message: Message) -> None:
    content = message.get("content")
    if isinstance(content, str) or (content is None and message.get("tool_calls")):
        return
    hint = ""
    if isinstance(content, Mapping):
        hint = "Write it as text, say with json.dumps."
    elif isinstance(content, Sequence):
        hint = "Join the texts of its parts to one; models for images and sound are not served."
    raise PromptError.for_field(f"{at}['content']", content, "a string", hint)
