"""Which conversation a request belongs to, told from the request alone.

A replica that has answered a conversation's last turn does not compute it again, so its requests
shall meet on one replica. A client may name the conversation; else its beginning does, which every
later request repeats.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

SESSION_HEADER = "x-session-id"  # as Ray Serve's own routing calls it

_BEGINNING = 256  # characters or token ids of a prompt that is no chat


def conversation_of(session: str | None, body: bytes) -> str | None:
    """A key that a conversation's requests share; None where nothing tells.

    Args:
        session: what the client named it.
        body: of a request to /v1/chat/completions or /v1/completions. One that is not valid has no
            key: the replica that gets it says why.
    """
    if session:
        return _key(["session", session])
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    if isinstance(messages := document.get("messages"), list):
        return _key([document.get("user"), document.get("tools"), _opening(messages)])
    if isinstance(prompt := document.get("prompt"), str | list) and prompt:
        return _key([document.get("user"), prompt[:_BEGINNING]])
    return None


def _opening(messages: list[Any]) -> list[Any]:
    """The messages up to the first one of the user."""
    for index, message in enumerate(messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            return messages[: index + 1]
    return messages


def _key(parts: list[Any]) -> str:
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
