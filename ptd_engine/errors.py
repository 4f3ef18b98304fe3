"""Errors a user can act on: each names the field, the value, what is allowed and what to do."""

from __future__ import annotations

from typing import Self

_MOST_SHOWN = 300  # characters of a value


def shown(value: object) -> str:
    """A value as a message shows it: its repr, cut where it is long (a prompt, a tensor)."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


class PTDError(Exception):
    """Base of every error that ptd_engine raises on purpose."""

    @classmethod
    def for_field(cls, field: str, value: object, allowed: str, hint: str = "") -> Self:
        """Build the standard message for a bad value.

        Args:
            field: the name the user wrote (a parameter, a config key, a file).
            value: what it held.
            allowed: what it may hold, as a phrase ("an integer >= 1").
            hint: what to do about it, a whole sentence.
        """
        message = f"{field}={shown(value)} is not valid: allowed is {allowed}."
        return cls(f"{message} {hint}".rstrip())


class ConfigError(PTDError, ValueError):
    """A parameter of the engine, of a drafter or of sampling is out of range or contradictory."""


class PromptError(PTDError, ValueError):
    """The prompt cannot be served: empty, too long, or with token ids outside the vocabulary."""


class CheckpointError(PTDError):
    """A model directory or file is missing, incomplete, damaged or of an unsupported kind."""


class UnavailableError(PTDError):
    """A backend, a device or an optional dependency that was asked for is not there."""


class EngineError(PTDError, RuntimeError):
    """Generation failed (for example a non-finite logit); the engine serves the next request."""


class BusyError(EngineError):
    """The engine serves another request and this one is not to wait, or would wait for ever."""


class DistributedError(PTDError, RuntimeError):
    """A rank of tensor parallelism ended, raised or did not answer: the model has to be loaded
    again.
    """
