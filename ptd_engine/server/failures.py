"""What a client is told when a request is not served: a status and an error body as OpenAI's."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

from fastapi.responses import Response

from ptd_engine.errors import ConfigError, PromptError, PTDError

_log = logging.getLogger(__name__)

CLIENT_GONE = 499  # nobody reads it; logs and metrics tell it from what was served


class ApiError(Exception):
    """A request that is refused, or that ends without its answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Describe it.

        Args:
            kind: the body's `type`.
            param: the field of the request that is to blame.
            code: for programs, for example "context_length_exceeded".
        """
        super().__init__(message)
        self.status = status
        self.param = param
        self.headers = dict(headers or {})
        self.body: dict[str, Any] = {
            "error": {"message": message, "type": kind, "param": param, "code": code}
        }

    @classmethod
    def of(cls, error: PTDError, param: str | None = None) -> ApiError:
        """A mistake in a request that the engine found; its message begins with the field, unless
        it is one about the prompt as a whole, `param`.
        """
        found = re.match(r"(\w+)(?:\[[^=]*\])*=", str(error))
        return cls(400, str(error), param=found[1] if found else param)


class JSONBody(Response):
    """JSON that any text can be in: lone surrogates, which UTF-8 has not, become escapes."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """See Response."""
        return encode(content)


def encode(content: object) -> bytes:
    """JSON in UTF-8, on one line."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")  # \udc80, as JSON writes it


def respond(error: ApiError) -> JSONBody:
    """The HTTP response of an error."""
    return JSONBody(error.body, error.status, headers=error.headers)


def of_engine(error: Exception) -> ApiError:
    """What an exception of a request that ran means: the engine's own errors are told, others are
    bugs, whose traceback goes to the log and of which the client gets no detail.
    """
    if isinstance(error, ConfigError | PromptError):
        return ApiError.of(error)
    if isinstance(error, PTDError):
        return ApiError(500, str(error), kind="server_error", code="generation_failed")
    _log.error("A request failed.", exc_info=error)
    return ApiError(
        500, "The server failed on this request; its log says how.", kind="server_error"
    )


def shutting_down() -> ApiError:
    """For requests that come, or are not finished, while the server ends."""
    return ApiError(503, "The server is shutting down.", kind="server_error", code="shutting_down")


def timed_out(seconds: float) -> ApiError:
    """For requests that took too long, the time in the queue included."""
    return ApiError(
        504,
        f"The request was not finished after {seconds:g} s, the time it waited included. Ask for "
        "fewer tokens (max_tokens), try again when the server is less busy, or start it with a "
        "larger --request-timeout.",
        kind="timeout_error",
        code="timeout",
    )
