"""How a server behaves: limits, names, access."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from ptd_engine.checks import check_choice, check_float, check_int
from ptd_engine.errors import ConfigError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Settings of a server; the model's are those of `LLM.from_pretrained`.

    Attributes:
        model_name: what /v1/models says and what a request's `model` must be.
        host: address to listen at; anything but a loopback address is reachable from outside.
        port: 0 takes a free one.
        api_key: asked for as "Authorization: Bearer KEY"; None: nobody is asked.
        allowed_hosts: names that a request's Host header may hold besides addresses and
            "localhost". Looked at where `host` is a loopback address: a web page whose name was
            bound to it would otherwise get in through the user's browser.
        max_queue: requests that may wait behind the running one; more are refused with 429.
        max_body_bytes: of a request; more is refused with 413, unread.
        request_timeout_s: from a request's arrival to its last token; a request may ask for less.
        shutdown_timeout_s: how long the running request may go on after a signal to end.
        default_max_tokens: for requests that leave max_tokens open. None: as OpenAI does, to the
            context limit for a chat, 16 for a completion.
        log_format: "json" (one object a line) or "text".
    """

    model_name: str = "model"
    host: str = LOOPBACK
    port: int = 8000
    api_key: str | None = None
    allowed_hosts: Sequence[str] = ()
    max_queue: int = 64
    max_body_bytes: int = 2 * 2**20
    request_timeout_s: float = 600.0
    shutdown_timeout_s: float = 30.0
    default_max_tokens: int | None = None
    log_format: str = "json"

    def __post_init__(self) -> None:
        check_int("port", self.port, 0, 65535, "0 takes a free one.")
        check_int("max_queue", self.max_queue, 0, 100_000)
        check_int("max_body_bytes", self.max_body_bytes, 1024, 2**30)
        check_float("request_timeout_s", self.request_timeout_s, 0.001, 1e6)
        check_float("shutdown_timeout_s", self.shutdown_timeout_s, 0.0, 1e6)
        if self.default_max_tokens is not None:
            check_int("default_max_tokens", self.default_max_tokens, 1, 2**31 - 1)
        check_choice("log_format", self.log_format, ("json", "text"))
        if self.api_key is not None and not (
            self.api_key and self.api_key.isascii() and self.api_key.isprintable()
        ):
            # Not for_field: a message must not show a key.
            raise ConfigError("api_key must be printable ASCII, at least one character.")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
