"""Checks of single settings, shared by the classes that users fill in."""

from __future__ import annotations

from ptd_engine.errors import ConfigError

MAX_SEED = 2**64 - 1
MAX_TOKEN_ID = 2**31 - 1


def check_int(field: str, value: object, low: int, high: int, hint: str = "") -> None:
    """Raise ConfigError unless `value` is an integer (a bool is none) from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError.for_field(field, value, f"an integer from {low} to {high}", hint)


def check_float(field: str, value: object, low: float, high: float, hint: str = "") -> None:
    """Raise ConfigError unless `value` is a number (a bool is none) from `low` to `high`."""
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    if not ok or not low <= value <= high:  # type: ignore[operator]  # NaN fails both bounds
        limit = f"a finite number from {low:g} to {high:g}"
        raise ConfigError.for_field(field, value, limit, hint)
