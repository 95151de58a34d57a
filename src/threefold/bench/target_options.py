"""Flags that say which server is under load, and what they come to. Runs nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from threefold.flags.flag import Flag
from threefold.flags.values import choice, integer, number, one, switch, text


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The server under load."""

    url: str | None = None
    """Its address; None = of `host` and `port`."""
    host: str = "127.0.0.1"
    """Its name."""
    port: int = 8000
    """Its port."""
    endpoint: str = "chat"
    """chat or completions."""
    model: str | None = None
    """Name at the server; None = the first it lists."""
    api_key: str | None = None
    """Bearer key."""
    header: tuple[str, ...] = ()
    """Further headers, K=V."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every request."""
    timeout_s: float = 600.0
    """Longest time for one answer."""
    reset_prefix_cache: bool = False
    """Ask the server to forget cached prefixes first."""

    @property
    def address(self) -> str:
        """Where requests go."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.url or f"http://{host}:{self.port}"


def _json_object(value: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError(f"""wants one JSON object in single quotes, got: {value}""")
    return parsed


TARGET_FLAGS = (
    Flag("url", "target.url", text, "the server (http://127.0.0.1:8000)", aliases=("--base-url",), metavar="URL"),
    Flag("endpoint", "target.endpoint",
         choice("chat", "completions", vllm="completions", openai="completions",
                **{"/v1/chat/completions": "chat", "/v1/completions": "completions", "openai-chat": "chat"}),
         "chat (default) or completions", aliases=("--backend", "--endpoint-type"), metavar="WHICH"),
    Flag("host", "target.host", text, "the server's name, when no --url is given", metavar="HOST"),
    Flag("port", "target.port", integer(1, 65535), "the server's port, when no --url is given (8000)", metavar="PORT"),
    Flag("model", "target.model", text, "name at the server; default: the first it lists", metavar="NAME"),
    Flag("api-key", "target.api_key", text, "bearer key", metavar="KEY"),
    Flag("header", "target.header", one, "further headers, NAME=VALUE", kind="list", metavar="HEADER"),
    Flag("extra-body", "target.extra_body", _json_object, "JSON object merged into every request; null drops a field",
         metavar="JSON"),
    Flag("timeout", "target.timeout_s", number(0, is_low_open=True), "longest time for one answer (600)",
         metavar="SECONDS"),
    Flag("reset-prefix-cache", "target.reset_prefix_cache", switch, "ask the server to forget cached prefixes first",
         kind="switch"),
)  # fmt: skip
