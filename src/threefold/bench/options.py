"""Flags of the bench commands, and what they come to. Runs nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from threefold.flags.flag import Flag
from threefold.flags.values import choice, human_int, integer, number, one, switch, text, words

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What is sent, and where the result goes."""

    dataset: str | None = None
    """JSON lines to read prompts from."""
    dataset_name: str = "auto"
    """The data set's form: one of forms.FORMS, trace, random, or auto."""
    group: str = "all"
    """all, extract, prose, mixed, short, or categories joined by commas."""
    num_prompts: int | None = None
    """Requests to send; None = every prompt of the group once."""
    concurrency: int | None = None
    """Requests at once; None = 16 over HTTP, all of them offline."""
    max_tokens: int = 256
    """Tokens wanted a request, where the data set does not say."""
    output_len: int | None = None
    """Tokens wanted of every request, whatever the data set says; None = as it says."""
    trace_block_tokens: int = 512
    """Prompt tokens that one of a trace's hashes stands for."""
    length_scale: float = 1.0
    """A trace's lengths are multiplied by it."""
    random_input_len: int = 1024
    """Tokens of a made-up prompt."""
    random_prefix_len: int = 0
    """Tokens that all made-up prompts begin with, beside their own."""
    random_range_ratio: float = 0.0
    """Made-up lengths are spread evenly by this share to both sides."""
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


@dataclass(frozen=True, slots=True)
class EnvelopeOptions:
    """Speculation off, gated, fixed and adaptive, over a table of loads."""

    dataset: str | None = None
    """JSON lines to read prompts from."""
    groups: tuple[str, ...] = ("extract", "prose", "mixed")
    """Loads, as LoadOptions.group names them; categories of one load are joined by +."""
    concurrency: tuple[int, ...] = (1, 4, 16, 64)
    """Users at once."""
    methods: tuple[str, ...] = ("ngram", "suffix")
    """Drafters."""
    fixed: tuple[int, ...] = (2, 4, 6, 8)
    """Fixed draft lengths to measure against."""
    rounds: int = 3
    """Runs of each variant."""
    max_tokens: int = 256
    """Most tokens of an answer."""
    ignore_eos: bool = False
    """Every answer goes on to max_tokens; False = to its natural end, found by a first run."""
    requests_per_row: int | None = None
    """Requests of a run for each user; None = 2, or with a budget as many as fit."""
    budget_s: float | None = None
    """Time that the table may take; None = as long as it takes."""
    shuffle_seed: int = 0
    """Of the choice of prompts."""
    label: str | None = None
    """A name for the run, kept in the result."""
    json: str | None = None
    """File to write the result to."""
    markdown: str | None = None
    """File to write the table to."""
    plot: str | None = None
    """Picture to draw."""


@dataclass(frozen=True, slots=True)
class StepLoadOptions:
    """A load that changes at once."""

    dataset: str | None = None
    """JSON lines to read prompts from."""
    group: str = "mixed"
    """As LoadOptions.group."""
    users: tuple[int, ...] = (4, 64, 4)
    """Users at once, phase by phase."""
    steps: int = 200
    """Steps a phase."""
    max_tokens: int = 128
    """Tokens of every answer."""
    shuffle_seed: int = 0
    """Of the choice of prompts."""
    json: str | None = None
    """File to write the result to."""
    plot: str | None = None
    """Picture to draw."""


def _each(parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Values joined by commas, at least one."""

    def parse_all(value: str) -> tuple[T, ...]:
        parts = words(value)
        if not parts:
            raise ValueError("wants at least one value; several are joined by commas")
        return tuple(dict.fromkeys(parse(part) for part in parts))

    return parse_all


def _counts(value: str) -> tuple[int, ...]:
    """Whole numbers joined by commas, in which one may come twice."""
    return tuple(integer(1, 65536)(part) for part in words(text(value)))


def _json_object(value: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError(f"""wants one JSON object in single quotes, got: {value}""")
    return parsed


_JSON = "file to write the result to"

DATASET_NAMES = ("auto", "spec_bench", "sharegpt", "humaneval", "custom", "openai_batch", "trace", "random")

LOAD_FLAGS = (
    Flag("dataset", "load.dataset", text, "prompts, as JSON lines or a JSON list, gzipped or not",
         aliases=("--dataset-path",), metavar="FILE"),
    Flag("dataset-name", "load.dataset_name",
         choice(*DATASET_NAMES, mooncake="trace", **{"spec-bench": "spec_bench"}),
         f"its form: {', '.join(DATASET_NAMES)} (auto), mooncake = trace", metavar="FORM"),
    Flag("group", "load.group", text, "all, extract, prose, mixed, short, or categories with commas",
         aliases=("--spec-bench-category",), metavar="GROUP"),
    Flag("num-prompts", "load.num_prompts", integer(1), "requests to send; default: each prompt once", metavar="N"),
    Flag("concurrency", "load.concurrency", integer(1, 65536), "requests at once (serve: 16, offline: all)",
         aliases=("--max-concurrency",), metavar="N"),
    Flag("max-tokens", "load.max_tokens", integer(1), "tokens wanted where the data set does not say (256)",
         metavar="N"),
    Flag("output-len", "load.output_len", integer(1), "tokens wanted of every request, whatever the data set says",
         aliases=("--spec-bench-output-len", "--custom-output-len", "--sharegpt-output-len", "--random-output-len"),
         metavar="N"),
    Flag("temperature", "load.temperature", number(0, 2), "0 = greedy, the default", metavar="T"),
    Flag("ignore-eos", "load.ignore_eos", switch, "go on to max-tokens", kind="switch"),
    Flag("random-input-len", "load.random_input_len", integer(1), "tokens of a random prompt (1024)",
         aliases=("--input-len",), metavar="N"),
    Flag("random-prefix-len", "load.random_prefix_len", integer(0), "tokens that random prompts share before it (0)",
         metavar="N"),
    Flag("random-range-ratio", "load.random_range_ratio", number(0, 1), "spread of random lengths to both sides (0)",
         metavar="SHARE"),
    Flag("length-scale", "load.length_scale", number(0, is_low_open=True), "factor on a trace's lengths (1)",
         metavar="F"),
    Flag("trace-block-tokens", "load.trace_block_tokens", integer(1), "tokens that a trace's hash stands for (512)",
         metavar="N"),
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

_DATASET_HELP = 'JSON lines: Spec-Bench\'s or {"prompt": ...}'
_PLOT_HELP = "picture to draw: .png, .svg or .pdf (needs the extra `plot`)"

ENVELOPE_FLAGS = (
    Flag("dataset", "envelope.dataset", text, _DATASET_HELP, aliases=("--dataset-path",), metavar="FILE"),
    Flag("groups", "envelope.groups", _each(text), "loads (extract,prose,mixed); categories of one joined by +",
         metavar="LIST"),
    Flag("concurrency", "envelope.concurrency", _each(integer(1, 65536)), "users at once (1,4,16,64)", metavar="LIST"),
    Flag("methods", "envelope.methods", _each(choice("ngram", "suffix", "draft_model")), "drafters (ngram,suffix)",
         metavar="LIST"),
    Flag("fixed", "envelope.fixed", _each(integer(1, 64)), "fixed draft lengths to measure against (2,4,6,8)",
         metavar="LIST"),
    Flag("rounds", "envelope.rounds", integer(1), "runs of each variant (3; fewer give no interval)", metavar="N"),
    Flag("max-tokens", "envelope.max_tokens", integer(1), "most tokens of an answer (256)", metavar="N"),
    Flag("ignore-eos", "envelope.ignore_eos", switch, "every answer goes on to max-tokens", kind="switch"),
    Flag("requests-per-row", "envelope.requests_per_row", integer(1),
         "requests of a run for each user (2); with --budget-s the most", metavar="N"),
    Flag("budget-s", "envelope.budget_s", number(0, is_low_open=True),
         "seconds that the table may take: chooses the number of requests, at least one a user", metavar="SECONDS"),
    Flag("shuffle-seed", "envelope.shuffle_seed", human_int, "of the choice of prompts (0)", metavar="N"),
    Flag("label", "envelope.label", text, "a name for the run, kept in the result", metavar="NAME"),
    Flag("json", "envelope.json", text, _JSON, aliases=("--output-json",), metavar="FILE"),
    Flag("markdown", "envelope.markdown", text, "file to write the table to, as Markdown", metavar="FILE"),
    Flag("plot", "envelope.plot", text, _PLOT_HELP, metavar="FILE"),
)  # fmt: skip

STEP_LOAD_FLAGS = (
    Flag("dataset", "step_load.dataset", text, _DATASET_HELP, aliases=("--dataset-path",), metavar="FILE"),
    Flag("group", "step_load.group", text, "all, extract, prose, mixed, or categories with commas (mixed)",
         metavar="GROUP"),
    Flag("users", "step_load.users", _counts, "users at once, phase by phase (4,64,4)", metavar="LIST"),
    Flag("steps", "step_load.steps", integer(20), "steps a phase (200)", metavar="N"),
    Flag("max-tokens", "step_load.max_tokens", integer(1), "tokens of every answer (128)", metavar="N"),
    Flag("shuffle-seed", "step_load.shuffle_seed", human_int, "of the choice of prompts (0)", metavar="N"),
    Flag("json", "step_load.json", text, _JSON, aliases=("--output-json",), metavar="FILE"),
    Flag("plot", "step_load.plot", text, _PLOT_HELP, metavar="FILE"),
)  # fmt: skip
