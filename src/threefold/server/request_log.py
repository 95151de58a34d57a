"""One structured line a request, when asked; figures only, never text of prompts or answers."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

_logger = logging.getLogger("threefold.requests")


def log_request(fields: dict[str, Any]) -> None:
    """Log a finished request."""
    line = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
    _logger.info("request %s", line, extra={"fields": fields})


class JsonFormatter(logging.Formatter):
    """One JSON object a line; structured fields keep their names."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = record.__dict__.get("fields")
        line |= fields if isinstance(fields, dict) else {"message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
