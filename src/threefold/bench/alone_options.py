"""Flags of `bench control` and `bench http`, which measure one part of the engine alone. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass

from threefold.bench.load_options import JSON_HELP
from threefold.flags.flag import Flag
from threefold.flags.values import choice, integer, number, output_file


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """The control half alone."""

    rows: int = 256
    """Running requests."""
    steps: int = 200
    """Steps a repeat."""
    repeats: int = 5
    """Fresh engines."""
    prompt_tokens: int = 32
    """Length of the prompts."""
    drafts: int = 0
    """Drafts a row and step."""
    json: str | None = None
    """File to write the result to."""


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """The HTTP server alone."""

    streams: int = 256
    """Streams at once."""
    requests: int = 512
    """Requests in all."""
    max_tokens: int = 256
    """Tokens a request."""
    step_ms: float = 0.0
    """Time that a step of the fake engine pretends to take."""
    endpoint: str = "chat"
    """chat or completions."""
    json: str | None = None
    """File to write the result to."""


CONTROL_FLAGS = (
    Flag("rows", "control.rows", integer(1), "running requests (256)", metavar="N"),
    Flag("steps", "control.steps", integer(1), "steps a repeat (200)", metavar="N"),
    Flag("repeats", "control.repeats", integer(1), "fresh engines (5)", metavar="N"),
    Flag("prompt-tokens", "control.prompt_tokens", integer(1), "length of the prompts (32)", metavar="N"),
    Flag("drafts", "control.drafts", integer(0), "drafts a row and step (0)", metavar="N"),
    Flag("json", "control.json", output_file, JSON_HELP, metavar="FILE"),
)


HTTP_FLAGS = (
    Flag("streams", "http.streams", integer(1, 65536), "streams at once (256)", metavar="N"),
    Flag("requests", "http.requests", integer(1), "requests in all (512)", metavar="N"),
    Flag("max-tokens", "http.max_tokens", integer(1), "tokens a request (256)", metavar="N"),
    Flag("step-ms", "http.step_ms", number(0), "time that a step pretends to take (0)", metavar="MS"),
    Flag("endpoint", "http.endpoint", choice("chat", "completions"), "chat (default) or completions", metavar="WHICH"),
    Flag("json", "http.json", output_file, JSON_HELP, metavar="FILE"),
)
