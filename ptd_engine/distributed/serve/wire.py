"""What ingress and replicas have agreed on."""

from __future__ import annotations

from typing import Any

from starlette.types import Scope

INGRESS = "Ingress"  # the deployment's name
REPLICA_HEADER = b"x-ptd-replica"  # of every answer: who gave it

_SENT = (
    *("type", "http_version", "method", "scheme", "path", "raw_path", "root_path"),
    *("query_string", "headers", "client", "server"),
)


def sendable(scope: Scope) -> dict[str, Any]:
    """The parts of a scope that mean the same in another process."""
    return {name: scope[name] for name in _SENT if name in scope}
