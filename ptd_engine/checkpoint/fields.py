"""Values of a config, each checked where it is read: a config.json is edited by hand, and a wrong
type must be named, not fail somewhere in the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ptd_engine.errors import CheckpointError

_HINT = "Correct the model's configuration."
_INT32_MAX = 2**31 - 1


def integer(config: Mapping[str, Any], key: str, least: int = 1) -> int:
    """An integer of `least` .. 2^31 - 1; 4096.0 counts as 4096.

    Raises:
        CheckpointError: anything else, also a missing key.
    """
    value: Any = config.get(key)
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or not least <= value <= _INT32_MAX:
        raise CheckpointError.for_field(key, value, f"an integer of {least} .. 2^31 - 1", _HINT)
    return int(value)


def number(
    config: Mapping[str, Any], key: str, default: float | None = None, *, zero: bool = False
) -> float:
    """A finite number above 0, or from 0 on where `zero`; null and absence mean the default.

    Raises:
        CheckpointError: anything else.
    """
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, bool) and isinstance(value, int | float):
        try:
            read = float(value)
        except OverflowError:  # an integer beyond the doubles
            read = math.inf
        if math.isfinite(read) and (read > 0 or (zero and read == 0)):
            return read
    allowed = "a finite number >= 0" if zero else "a finite number > 0"
    raise CheckpointError.for_field(key, value, allowed, _HINT)


def flag(config: Mapping[str, Any], key: str) -> bool:
    """True or false; null and absence mean false.

    Raises:
        CheckpointError: anything else ("false" as a string would count as true).
    """
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError.for_field(key, value, "true or false", _HINT)
    return bool(value)


def strings(config: Mapping[str, Any], key: str) -> list[str]:
    """A list of strings; null and absence mean an empty one.

    Raises:
        CheckpointError: anything else, also a bare string.
    """
    value = config.get(key)
    if value is None:
        return []
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise CheckpointError.for_field(key, value, "a list of strings", _HINT)
    return list(value)
