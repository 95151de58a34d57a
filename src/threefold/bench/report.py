"""A result to a table in the layout of `vllm bench serve`, and to a JSON file. Computes nothing."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from threefold.bench.measure import METRICS, PERCENTILES
from threefold.errors import ConfigError

WIDTH = 50
_LABEL = 40
_WIDEST = 400  # wider than any table: lines are cut by the terminal, not here
_BLOCKS = (
    ("Time to First Token", "ttft", "TTFT"),
    ("Time per Output Token (excl. 1st token)", "tpot", "TPOT"),
    ("Inter-token Latency", "itl", "ITL"),
    ("End-to-end Latency", "e2el", "E2EL"),
    ("Client-side Queueing", "client_queue_time", "queueing"),
    ("Queue-inclusive End-to-end Latency", "e2el_including_client_queue", "queue and E2EL"),
)
_TOP = (
    ("Successful requests:", "completed"),
    ("Failed requests:", "failed"),
    ("Interrupted requests:", "num_interrupted"),
    ("Maximum request concurrency:", "max_concurrency"),
    ("Request rate configured (RPS):", "request_rate"),
    ("Benchmark duration (s):", "duration"),
    ("Total input tokens:", "total_input_tokens"),
    ("Total cached input tokens:", "total_cached_tokens"),
    ("Total generated tokens:", "total_output_tokens"),
    ("Request throughput (req/s):", "request_throughput"),
    ("Request goodput (req/s):", "request_goodput"),
    ("Output token throughput (tok/s):", "output_throughput"),
    ("Peak output token throughput (tok/s):", "max_output_tokens_per_s"),
    ("Peak concurrent requests:", "max_concurrent_requests"),
    ("Total token throughput (tok/s):", "total_token_throughput"),
    ("Chunk throughput (chunk/s):", "chunk_throughput"),
    ("Tokens a chunk:", "tokens_per_chunk"),
)
_STEADY = (
    ("Window (s):", "steady_duration"),
    ("Requests wholly inside:", "steady_completed"),
    ("Request throughput (req/s):", "steady_request_throughput"),
    ("Output token throughput (tok/s):", "steady_output_throughput"),
    ("Mean TTFT (ms):", "steady_mean_ttft_ms"),
    ("P99 TTFT (ms):", "steady_p99_ttft_ms"),
    ("Mean TPOT (ms):", "steady_mean_tpot_ms"),
    ("P99 TPOT (ms):", "steady_p99_tpot_ms"),
)
_SPECULATION = (
    ("Acceptance rate (%):", "spec_decode_acceptance_rate"),
    ("Acceptance length:", "spec_decode_acceptance_length"),
    ("Drafts:", "spec_decode_num_drafts"),
    ("Draft tokens:", "spec_decode_draft_tokens"),
    ("Accepted tokens:", "spec_decode_accepted_tokens"),
)


def table_lines(
    result: dict[str, Any],
    title: str = "Serving Benchmark Result",
    metrics: Sequence[str] = METRICS,
    percentiles: Sequence[float] = PERCENTILES,
) -> list[str]:
    """The table, one string a line; rows whose key is missing or None are left out."""
    lines = [f" {title} ".center(WIDTH, "=")]
    lines += _rows(result, _TOP)
    for heading, name, label in (block for block in _BLOCKS if block[1] in metrics):
        rows = [(f"{what} {label} (ms):", f"{what.lower()}_{name}_ms") for what in ("Mean", "Median", "Std")]
        rows += [(f"P{p:g} {label} (ms):", f"p{p:g}_{name}_ms") for p in percentiles if p != 50]
        block = _rows(result, rows)
        lines += [heading.center(WIDTH, "-"), *block] if block else []
    if result.get("steady_output_throughput") is not None:
        lines += ["Steady State".center(WIDTH, "-"), *_rows(result, _STEADY)]
    if "spec_decode_num_drafts" in result:
        lines += ["Speculative Decoding".center(WIDTH, "-"), *_rows(result, _SPECULATION)]
        for position, rate in enumerate(result["spec_decode_per_position_acceptance_rates"]):
            lines.append(_row(f"  Position {position}:", 100 * rate))
    if result.get("failures"):
        lines += ["Failures".center(WIDTH, "-"), *(f"{count} x {why}" for why, count in result["failures"].items())]
    if result.get("remarks"):
        lines += ["Remarks".center(WIDTH, "-"), *result["remarks"]]
    return [*lines, "=" * WIDTH]


def drawn_table(headers: Sequence[str], rows: Sequence[Sequence[str]], num_left: int = 1) -> list[str]:
    """A table as lines: the first `num_left` columns of words, the others of figures."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(headers):
        table.add_column(name, justify="left" if index < num_left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(file=io.StringIO(), width=_WIDEST, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines() if line.strip()]


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]], num_left: int = 1) -> list[str]:
    """The same for a document."""
    sides = ["---" if index < num_left else "---:" for index in range(len(headers))]
    return [f"| {' | '.join(line)} |" for line in (headers, sides, *rows)]


def print_table(lines: list[str]) -> None:
    """Print, headings in bold on a terminal, failures in red."""
    console = Console(highlight=False, soft_wrap=True)
    is_failure = False
    for line in lines:
        is_heading = line.startswith(("=", "-")) or line.endswith("-")
        is_failure = (is_failure and not is_heading) or line.strip("-") == "Failures"
        console.print(line, style="bold" if is_heading else "red" if is_failure else None, markup=False)


def say(line: str) -> None:
    """A line for whoever waits, beside the result."""
    print(line, file=sys.stderr, flush=True)


def write_json(path: Path, result: dict[str, Any]) -> None:
    """Write the result.

    Raises:
        ConfigError: the file cannot be written.
    """
    write_text(path, json_text(result), "--json")


def json_text(result: dict[str, Any]) -> str:
    """The result as it stands in a file."""
    return json.dumps(result, indent=1, ensure_ascii=False) + "\n"


def write_text(path: Path, content: str, flag: str) -> None:
    """Write a file that `flag` asked for.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{flag} {path}: cannot write it: {error.strerror}") from None


def _rows(result: dict[str, Any], rows: Any) -> list[str]:
    return [_row(label, result[key]) for label, key in rows if result.get(key) is not None]


def _row(label: str, value: float | str) -> str:
    return f"{label:<{_LABEL}} {f'{value:.2f}' if isinstance(value, float) else value}"
