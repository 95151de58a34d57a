"""Where the server's log lines go: stderr, as text for people or JSON for machines."""

from __future__ import annotations

import logging

from threefold.server.request_log import JsonFormatter

_TEXT = "%(asctime)s %(levelname)s %(message)s"


def set_up_logging(log_format: str, log_level: str = "info") -> None:
    """Send Threefold's lines and the web server's warnings to stderr.

    Args:
        log_format: text or json.
        log_level: least level of Threefold's lines: debug, info, warning or error.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(_TEXT))
    for name, level in (("threefold", logging.getLevelNamesMapping()[log_level.upper()]), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
