"""The server's log: one line an event, JSON for programs or text for people. Prompts and answers
are not in it.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        """See Formatter."""
        line = {**_head(record), "message": record.getMessage(), **_fields(record)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """The same for people: fields as name=value behind the message."""

    def format(self, record: logging.LogRecord) -> str:
        """See Formatter."""
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        time = _head(record)["time"]
        line = f"{time} {record.levelname} {record.getMessage()} {fields}".rstrip()
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


def configure(log_format: str, stream: TextIO | None = None) -> None:
    """Send every logger's lines, from INFO on, to a stream (standard error)."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in ("httpx", "httpcore", "urllib3", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.WARNING)


def event(logger: logging.Logger, message: str, **fields: object) -> None:
    """Log an event; fields that are None are left out, floats are rounded."""
    shown = {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in fields.items()
        if value is not None
    }
    logger.info(message, extra={"fields": shown})


def _head(record: logging.LogRecord) -> dict[str, object]:
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return {"time": time, "level": record.levelname.lower(), "logger": record.name}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    found = getattr(record, "fields", None)
    return found if isinstance(found, dict) else {}
