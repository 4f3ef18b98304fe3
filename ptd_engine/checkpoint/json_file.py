"""A JSON object from a model directory, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ptd_engine.errors import CheckpointError


def read_json(path: Path, *, required: bool) -> dict[str, Any]:
    """The object in `path`; without the file {}, unless it is required.

    Raises:
        CheckpointError: missing though required, not valid JSON in UTF-8, or no object.
    """
    if not path.is_file():
        if required:
            raise CheckpointError(
                f"{path} is missing: not a model directory, or incomplete download."
            )
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError: also an integer of 5000 digits
        raise CheckpointError(
            f"{path} is not valid JSON ({error}): incomplete download?"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object.")
    return content
