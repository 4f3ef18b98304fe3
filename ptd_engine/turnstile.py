"""Lets one request at a time into an engine."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Literal

from ptd_engine.errors import BusyError, ConfigError

OnBusy = Literal["wait", "error"]

_POLL_S = 0.05  # how soon a waiting request notices that it was cancelled


def check_on_busy(value: str) -> None:
    """Raise ConfigError for anything but "wait" and "error"."""
    if value not in ("wait", "error"):
        raise ConfigError.for_field("on_busy", value, "'wait' or 'error'")


class Turnstile:
    """One request at a time. Those of other threads wait or err, as asked for; one of the same
    thread would wait for ever, so it errs.
    """

    def __init__(self, on_busy: OnBusy) -> None:
        """Make it free.

        Raises:
            ConfigError: neither "wait" nor "error".
        """
        check_on_busy(on_busy)
        self._waits = on_busy == "wait"
        self._lock = threading.Lock()
        self._owner: int | None = None

    def enter(self, cancelled: Callable[[], bool]) -> bool:
        """Wait for the engine; false if the request was cancelled meanwhile.

        Raises:
            BusyError: another request of this thread has it, or any if nobody is to wait.
        """
        me = threading.get_ident()
        if self._owner == me and self._lock.locked():
            gc.collect()  # a stream that was dropped may still be held by a reference cycle
        if self._owner == me and self._lock.locked():
            raise BusyError(
                "The engine is busy with another generation of this thread: a stream that is not "
                "read to its end, or the request whose callback makes this one. Exhaust the stream "
                "or call its close() first, and use another engine in callbacks."
            )
        while not self._lock.acquire(timeout=_POLL_S if self._waits else 0):
            if not self._waits:
                raise BusyError(
                    "The engine is busy with a request of another thread. Try again later, give "
                    "each thread an engine of its own (with_drafter shares the weights), or make "
                    "requests wait with on_busy='wait'."
                )
            if cancelled():
                return False
        self._owner = me
        return True

    def passed_on(self) -> None:
        """Note who reads the stream now: it may have moved to another thread."""
        self._owner = threading.get_ident()

    def leave(self) -> None:
        """Free the engine; any thread may do it for the one that entered."""
        self._owner = None
        self._lock.release()
