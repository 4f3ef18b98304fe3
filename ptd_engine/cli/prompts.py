"""Prompts from the command line: one text, or files of many."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptd_engine.errors import ConfigError, PromptError

_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, slots=True)
class PromptItem:
    """A prompt and what to call it in reports.

    Attributes:
        id: the file's own `id`, else FILE:LINE.
        text: what the user says.
    """

    id: str
    text: str


def collect(
    prompt: str | None, files: Sequence[Path], limit: int | None = None
) -> list[PromptItem]:
    """The prompts of --prompt or --prompts, at most `limit` of each file.

    Raises:
        ConfigError: both or neither were given, or a limit below 1.
        PromptError: a file that cannot be read, holds no prompt, or has a malformed line (named).
    """
    if prompt is not None and files:
        raise ConfigError("--prompt and --prompts contradict each other: give one of them.")
    if prompt is None and not files:
        raise ConfigError(
            "No prompt: give --prompt TEXT, or --prompts FILE for a file of several prompts."
        )
    if limit is not None and limit < 1:
        raise ConfigError.for_field(
            "--limit", limit, "an integer >= 1", "Leave it out to take every prompt."
        )
    if prompt is not None:
        return [PromptItem("prompt", prompt)]
    return [item for file in files for item in read_prompts(file)[:limit]]


def read_prompts(path: Path) -> list[PromptItem]:
    """Read a file of prompts: JSON lines, or one prompt a line; empty lines are skipped.

    It is JSON lines if it is called *.jsonl, *.ndjson or *.json, or if its first line that is not
    empty begins with "{". A line is an object with `turns` (a list of strings; the first is the
    prompt) or else `prompt` (a string), and optionally `id`.

    Raises:
        PromptError: see `collect`.
    """
    lines = [
        (number, line)
        for number, line in enumerate(_read(path).split("\n"), start=1)
        if line.strip()
    ]
    if not lines:
        raise PromptError(f"{path} holds no prompt: the file is empty.")
    if path.suffix.lower() in _JSON_SUFFIXES or lines[0][1].lstrip().startswith("{"):
        return [_from_json(path, number, line) for number, line in lines]
    return [PromptItem(f"{path.name}:{number}", line.rstrip("\r")) for number, line in lines]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise PromptError(f"File of prompts not found: {path}. Check the path.") from error
    except UnicodeDecodeError as error:
        raise PromptError(
            f"{path} is not UTF-8 text (byte {error.start}): convert it, for example with iconv."
        ) from error
    except OSError as error:
        raise PromptError(f"{path} cannot be read: {error.strerror}.") from error


def _from_json(path: Path, number: int, line: str) -> PromptItem:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: also an integer of 5000 digits
        raise PromptError(
            f"{path}, line {number}: not valid JSON ({error}). Each line is one object."
        ) from error
    if not isinstance(row, dict):
        raise PromptError(f'{path}, line {number}: not an object with "turns" or "prompt".')
    name = row.get("id")
    return PromptItem(
        str(name) if name is not None else f"{path.name}:{number}", _text(path, number, row)
    )


def _text(path: Path, number: int, row: dict[str, Any]) -> str:
    turns = row.get("turns")
    if turns is not None:
        if isinstance(turns, list) and turns and isinstance(turns[0], str):
            return turns[0]
        raise PromptError(f'{path}, line {number}: "turns" is not a non-empty list of strings.')
    prompt = row.get("prompt")
    if isinstance(prompt, str):
        return prompt
    found = "is not a string" if prompt is not None else 'is missing, and so is "turns"'
    raise PromptError(f'{path}, line {number}: "prompt" {found}.')
