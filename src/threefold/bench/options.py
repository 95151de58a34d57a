"""Flags of the bench commands, and what they come to. Runs nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from threefold.flags.flag import Flag
from threefold.flags.values import choice, human_int, integer, number, one, switch, text


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What is sent, and where the result goes."""

    dataset: str | None = None
    """JSON lines to read prompts from."""
    group: str = "all"
    """all, extract, prose, short, or categories joined by commas."""
    num_prompts: int | None = None
    """Requests to send; None = every prompt of the group once."""
    concurrency: int | None = None
    """Requests at once; None = 16 over HTTP, all of them offline."""
    max_tokens: int = 256
    """Tokens wanted a request."""
    temperature: float = 0.0
    """0 = greedy."""
    ignore_eos: bool = False
    """Go on to max_tokens."""
    shuffle_seed: int = 0
    """Of the choice of prompts, and of sampling."""
    num_warmups: int = 0
    """Requests sent before the clock starts."""
    goodput: tuple[str, ...] = ()
    """Limits such as ttft:500 (ms)."""
    json: str | None = None
    """File to write the result to."""
    label: str | None = None
    """A name for the run, kept in the result."""


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The server under load."""

    url: str = "http://127.0.0.1:8000"
    """Its address."""
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


def _json_object(value: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError(f"""wants one JSON object in single quotes, got: {value}""")
    return parsed


_JSON = "file to write the result to"

LOAD_FLAGS = (
    Flag("dataset", "load.dataset", text, "JSON lines: Spec-Bench's or {\"prompt\": ...}", aliases=("--dataset-path",),
         metavar="FILE"),
    Flag("group", "load.group", text, "all, extract, prose, short, or categories with commas",
         aliases=("--spec-bench-category",), metavar="GROUP"),
    Flag("num-prompts", "load.num_prompts", integer(1), "requests to send; default: each prompt once", metavar="N"),
    Flag("concurrency", "load.concurrency", integer(1, 65536), "requests at once (serve: 16, offline: all)",
         aliases=("--max-concurrency",), metavar="N"),
    Flag("max-tokens", "load.max_tokens", integer(1), "tokens wanted a request (256)",
         aliases=("--output-len", "--spec-bench-output-len", "--custom-output-len"), metavar="N"),
    Flag("temperature", "load.temperature", number(0, 2), "0 = greedy, the default", metavar="T"),
    Flag("ignore-eos", "load.ignore_eos", switch, "go on to max-tokens", kind="switch"),
    Flag("num-warmups", "load.num_warmups", integer(0), "requests sent before the clock starts (0)", metavar="N"),
    Flag("goodput", "load.goodput", one, "limits in ms: ttft:500 tpot:50 e2el:5000", kind="list", metavar="LIMIT"),
    Flag("label", "load.label", text, "a name for the run, kept in the result", metavar="NAME"),
    Flag("json", "load.json", text, _JSON, aliases=("--output-json",), metavar="FILE"),
)  # fmt: skip
SEED_FLAG = Flag("seed", "load.shuffle_seed", human_int, "of the choice of prompts and of sampling (0)", metavar="N")
SHUFFLE_SEED_FLAG = Flag("shuffle-seed", "load.shuffle_seed", human_int, "of the choice of prompts (0)", metavar="N")

TARGET_FLAGS = (
    Flag("url", "target.url", text, "the server (http://127.0.0.1:8000)", aliases=("--base-url",), metavar="URL"),
    Flag("endpoint", "target.endpoint",
         choice("chat", "completions", **{"/v1/chat/completions": "chat", "/v1/completions": "completions"}),
         "chat (default) or completions", metavar="WHICH"),
    Flag("model", "target.model", text, "name at the server; default: the first it lists", metavar="NAME"),
    Flag("api-key", "target.api_key", text, "bearer key", metavar="KEY"),
    Flag("header", "target.header", one, "further headers, NAME=VALUE", kind="list", metavar="HEADER"),
    Flag("extra-body", "target.extra_body", _json_object, "JSON object merged into every request", metavar="JSON"),
    Flag("timeout", "target.timeout_s", number(0, is_low_open=True), "longest time for one answer (600)",
         metavar="SECONDS"),
    Flag("reset-prefix-cache", "target.reset_prefix_cache", switch, "ask the server to forget cached prefixes first",
         kind="switch"),
)  # fmt: skip

CONTROL_FLAGS = (
    Flag("rows", "control.rows", integer(1), "running requests (256)", metavar="N"),
    Flag("steps", "control.steps", integer(1), "steps a repeat (200)", metavar="N"),
    Flag("repeats", "control.repeats", integer(1), "fresh engines (5)", metavar="N"),
    Flag("prompt-tokens", "control.prompt_tokens", integer(1), "length of the prompts (32)", metavar="N"),
    Flag("drafts", "control.drafts", integer(0), "drafts a row and step (0)", metavar="N"),
    Flag("json", "control.json", text, _JSON, metavar="FILE"),
)

HTTP_FLAGS = (
    Flag("streams", "http.streams", integer(1, 65536), "streams at once (256)", metavar="N"),
    Flag("requests", "http.requests", integer(1), "requests in all (512)", metavar="N"),
    Flag("max-tokens", "http.max_tokens", integer(1), "tokens a request (256)", metavar="N"),
    Flag("step-ms", "http.step_ms", number(0), "time that a step pretends to take (0)", metavar="MS"),
    Flag("endpoint", "http.endpoint", choice("chat", "completions"), "chat (default) or completions", metavar="WHICH"),
    Flag("json", "http.json", text, _JSON, metavar="FILE"),
)
