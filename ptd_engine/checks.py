"""Checks of single settings, shared by the classes that users fill in."""

from __future__ import annotations

import operator
from numbers import Real

from ptd_engine.errors import ConfigError

MAX_SEED = 2**64 - 1
SEED_HINT = "None draws another one for every request."
MAX_TOKEN_ID = 2**31 - 1


def as_int(value: object) -> int | None:
    """`value` as an int if it is any kind of integer, numpy's too (a bool is none), else None."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        return operator.index(value)
    except TypeError:  # an array has the method, and more than one element
        return None


def check_int(field: str, value: object, low: int, high: int, hint: str = "") -> int:
    """Return `value` as an int.

    Raises:
        ConfigError: it is no integer (a bool is none), or not from `low` to `high`.
    """
    number = as_int(value)
    if number is None or not low <= number <= high:
        raise ConfigError.for_field(field, value, f"an integer from {low} to {high}", hint)
    return number


def check_float(field: str, value: object, low: float, high: float, hint: str = "") -> float:
    """Return `value` as a plain number.

    Raises:
        ConfigError: it is no number (a bool is none), or not from `low` to `high`.
    """
    ok = isinstance(value, Real) and not isinstance(value, bool)  # numpy's numbers are Real
    if ok and not isinstance(value, int):  # numpy's halves cannot hold the bounds
        try:
            value = float(value)  # type: ignore[arg-type]
        except OverflowError:  # a fraction
            ok = False
    if not ok or not low <= value <= high:  # type: ignore[operator]  # NaN fails both bounds
        limit = f"a finite number from {low:g} to {high:g}"
        raise ConfigError.for_field(field, value, limit, hint)
    return value  # type: ignore[return-value]


def check_bool(field: str, value: object) -> None:
    """Raise ConfigError for anything but True and False: "no" would be true."""
    if not isinstance(value, bool):
        raise ConfigError.for_field(field, value, "True or False")


def check_choice(field: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise ConfigError unless `value` is one of these names."""
    if value not in allowed:
        raise ConfigError.for_field(field, value, " or ".join(repr(name) for name in allowed))
