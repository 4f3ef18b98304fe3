"""From the bytes of a body to a checked request."""

from __future__ import annotations

import asyncio
import difflib
import json
from typing import Any, Never, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from ptd_engine.errors import shown
from ptd_engine.server.failures import CLIENT_GONE, ApiError
from ptd_engine.server.protocol import UnknownFieldError

Model = TypeVar("Model", bound=BaseModel)

BODY_TIMEOUT_S = 60.0
_MOST_NAME = 100  # characters of a name that an error repeats


async def read_request(request: Request, kind: type[Model]) -> Model:
    """Read and check a request's body; its size was limited before.

    Raises:
        ApiError: it did not come whole, is no JSON object, or holds what `kind` does not allow.
    """
    return parse(await read_body(request), kind)


async def read_body(request: Request) -> bytes:
    """Read a request's body.

    Raises:
        ApiError: it did not come whole.
    """
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.body()
    except TimeoutError:
        raise ApiError(408, f"The body did not come within {BODY_TIMEOUT_S:g} s.") from None
    except ClientDisconnect:
        raise ApiError(CLIENT_GONE, "The client left.") from None


def parse(body: bytes, kind: type[Model]) -> Model:
    """Check a body.

    Raises:
        ApiError: see `read_request`.
    """
    try:
        document = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # ValueError: also bytes that are no UTF-8
        raise ApiError(400, f"The body is not valid JSON: {error}.") from None
    if not isinstance(document, dict):
        raise ApiError(400, "The body is not a JSON object.")
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise _refusal(error, kind) from None
    except RecursionError:
        raise ApiError(400, "The body is nested too deeply.") from None


def _no_number(name: str) -> Never:
    raise ValueError(f"{name} is not a JSON number")


def _refusal(error: ValidationError, kind: type[BaseModel]) -> ApiError:
    """The first mistake, and of a union what each of its members expected."""
    mistakes = error.errors(include_url=False)
    first: dict[str, Any] = dict(mistakes[0])
    path = first["loc"]
    field = str(path[0]) if path else None
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, UnknownFieldError):
        return _unknown(".".join([*map(str, path), cause.name]), None if path else kind)
    if first["type"] == "missing":
        return ApiError(400, f"{field} is required.", param=field, code="missing_field")
    same_field = [m["msg"] for m in mistakes if m["loc"][:1] == path[:1]]
    allowed = " or ".join(dict.fromkeys(same_field))
    where = "".join(f"[{part}]" for part in path[1:] if isinstance(part, int))
    return ApiError(400, f"{field}{where}={shown(first['input'])}: {allowed}.", param=field)


def _unknown(name: str, kind: type[BaseModel] | None) -> ApiError:
    if len(name) > _MOST_NAME:
        name = f"{name[:_MOST_NAME]}..."
    message = f"Unrecognized request argument: {name}."
    if name == "logits_processor":
        message += " It is a function, which has no JSON: use LLM.generate in Python."
    elif kind is not None:
        close = difflib.get_close_matches(name, kind.model_fields, 1)
        allowed = ", ".join(sorted(kind.model_fields))
        message += f" Did you mean {close[0]}?" if close else f" Allowed are {allowed}."
    return ApiError(400, message, param=name, code="unknown_field")
