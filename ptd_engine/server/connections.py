"""Connections that ask for nothing: closed after a while, and the oldest where there are too many.

uvicorn closes a connection that is silent after a request, not one that never ends the headers of
its first, or dribbles on behind an answer. Each holds a file of the process.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

HEADERS_S = 30.0  # for the headers of a request to come
MOST_IDLE = 512  # connections that ask for nothing
MOST = 1024  # more are answered 503 by uvicorn
_CLOSING_S = 120.0  # for a client to take what is left of an answer
_FILES = 4096


class IdleConnections:
    """Closes connections of uvicorn that have no request for too long."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

    def check(self, connections: Iterable[Any]) -> None:
        """Look at all connections; called about once a second."""
        now = self._clock()
        idle = []
        for connection in connections:
            request = connection.cycle
            if request is not None and not request.response_complete:
                self._since.pop(connection, None)
            else:
                idle.append((self._since.setdefault(connection, now), connection))
        idle.sort(key=lambda entry: entry[0])
        excess = len(idle) - MOST_IDLE
        for place, (since, connection) in enumerate(idle):
            waited = now - since
            if waited > HEADERS_S + _CLOSING_S:
                connection.transport.abort()
            elif waited > HEADERS_S or place < excess:
                connection.transport.close()


def allow_files() -> None:
    """Let the process have a file a connection, where the system allows it; many shells allow fewer
    than uvicorn takes connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
