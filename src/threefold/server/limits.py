"""Hard limits of the HTTP surface: what no honest client reaches, and what a hostile one must not exceed."""

from __future__ import annotations

MAX_JSON_DEPTH = 64
"""Deepest nesting of a request body."""
MAX_MESSAGES = 2048
"""Messages of one chat."""
MAX_PROMPTS = 128
"""Prompts of one completion request."""
MAX_HEADERS = 128
"""Header lines of one request."""
MAX_REPORTED_FIELDS = 20
"""Ignored field names listed in a response header."""
MAX_REQUEST_ID_CHARS = 128
"""Longest request id taken over from a client."""
HEAD_TIMEOUT_S = 30.0
"""Time a client has to send a request's head."""
BODY_TIMEOUT_S = 60.0
"""Time a client has to send a request's body."""
TEMPLATE_TIMEOUT_S = 2.0
"""Wall clock of one chat template rendering."""
LONG_TEXT_CHARS = 8192
"""Texts longer than this are tokenised in a thread, so that the event loop stays free."""
MAX_INT = 2**31 - 1
"""Largest integer accepted where no smaller bound applies."""
