"""The section of loads on a server: how long people wait as more of them come, and how many drafts were right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from threefold.bench.sweep import Knee, find_run_knee, is_open_loop, place_of
from threefold.report.charts import Line, Mark, line_chart
from threefold.report.formats import count, is_figure, percent, plural
from threefold.report.markup import Section, charts, figure, heading, joined, listing, paragraph, table
from threefold.report.parts import Part

_MOST_LINES = 5
_REASON_CHARS = 60
_LATENCIES = (
    ("Time to the first token", "ttft", "ms to first token"),
    ("Time per further token", "tpot", "ms per token"),
)
_SPREAD = (("median", "half of the requests were faster"), ("p90", "nine in ten"), ("p99", "99 in 100"))
_COLUMNS = {
    "done": "completed", "failed": "failed", "tokens/s": "output_throughput", "requests/s": "request_throughput",
    "within limits/s": "request_goodput", "TTFT p50 ms": "median_ttft_ms", "p90": "p90_ttft_ms",
    "p99": "p99_ttft_ms", "TPOT p50 ms": "median_tpot_ms", "p90 ": "p90_tpot_ms", "p99 ": "p99_tpot_ms",
    "whole answer p50 ms": "median_e2el_ms",
}  # fmt: skip


def serve_section(parts: Sequence[Part], *, include_text: bool) -> Section:
    """Every load that was measured; runs that differ in concurrency or rate alone make one curve."""
    lead = paragraph(
        "How long people wait for the first word and between words, and how much the server writes, as more of them "
        "come at once.",
        "lead",
    )
    curves: dict[tuple[Any, ...], list[Part]] = {}
    for part in parts:
        curves.setdefault(_curve_of(part.data), []).append(part)
    bodies = [_curve(sorted(members, key=_order), include_text) for members in curves.values()]
    return Section("serve", "Load on a server", joined([lead, *bodies]))


def _curve_of(run: Mapping[str, Any]) -> tuple[Any, ...]:
    keys = ("label", "model_id", "dataset", "group", "max_tokens", "temperature", "endpoint_type")
    return (*(run.get(key) for key in keys), is_open_loop(run))


def _order(part: Part) -> float:
    place = place_of(part.data)
    return -1.0 if place is None else place


def _curve(parts: Sequence[Part], include_text: bool) -> Markup:
    runs = [part.data for part in parts]
    unit = "requests per second" if is_open_loop(runs[0]) else "users at once"
    placed = [run for run in runs if place_of(run) is not None and run["completed"]]
    source = parts[0].origin.short
    figures: list[Markup] = []
    knee = find_run_knee(runs)
    if len({place_of(run) for run in placed}) > 1:
        figures = _curves(placed, unit, source, _mark(knee))
    figures += _acceptance(runs, unit, source)
    word = ""
    if knee is not None:
        at = f"The knee is at {_so_many(knee.at, unit)}" if knee.at is not None else "No knee was found"
        word = f"{at}: {knee.reason}."
    shown = [heading(_title(runs[0])), paragraph(word, "verdict") if word else Markup("")]
    origins = {part.origin.lines(): None for part in parts}
    return joined([*shown, charts(figures), _table(runs, unit), *_notes(runs, include_text), *origins])


def _mark(knee: Knee | None) -> Mark | None:
    return Mark(knee.at, "knee") if knee is not None and knee.at is not None else None


def _so_many(place: float, unit: str) -> str:
    one = unit.replace("users", "user").replace("requests", "request")
    return f"{count(place)} {one if place == 1 else unit}"


def _title(run: Mapping[str, Any]) -> str:
    model = str(run.get("model_id") or "model").rsplit("/", maxsplit=1)[-1]
    data = str(run.get("dataset") or "").rsplit("/", maxsplit=1)[-1]
    group = run.get("group")
    about = f"{data} ({group})" if data and group not in (None, "all") else data
    return ", ".join(str(part) for part in (run.get("label"), model, about) if part)


def _curves(runs: Sequence[Mapping[str, Any]], unit: str, source: str, knee: Mark | None) -> list[Markup]:
    knees = [knee] if knee is not None else []
    shown = []
    for title, name, label in _LATENCIES:
        lines = [line for word, told in _SPREAD if (line := _line(f"{word} ({told})", runs, f"{word}_{name}_ms")).xs]
        limit = (runs[0].get("goodput_limits_ms") or {}).get(name)
        levels = [Mark(float(limit), "limit")] if limit is not None and is_figure(limit) else []
        if lines:
            chart = line_chart(lines, x_label=unit, y_label=label, is_log_x=True, knees=knees, levels=levels)
            shown.append(figure(f"{title} ({name.upper()})", chart, source, [line.name for line in lines]))
    lines = [_line("all requests together", runs, "output_throughput")]
    if any(is_figure(run.get("steady_output_throughput")) for run in runs):
        lines.append(_line("while the load held", runs, "steady_output_throughput"))
    chart = line_chart(lines, x_label=unit, y_label="tokens per second", is_log_x=True, knees=knees)
    return [*shown, figure("What the server writes", chart, source, [line.name for line in lines])]


def _line(name: str, runs: Sequence[Mapping[str, Any]], key: str) -> Line:
    known = [(place_of(run) or 0.0, run[key]) for run in runs if is_figure(run.get(key))]
    return Line(name, [place for place, _ in known], [value for _, value in known])


def _acceptance(runs: Sequence[Mapping[str, Any]], unit: str, source: str) -> list[Markup]:
    """How often the 1st, 2nd … drafted token was right."""
    lines = []
    for run in runs:
        rates = [100 * rate for rate in run.get("spec_decode_per_position_acceptance_rates") or () if is_figure(rate)]
        place = place_of(run)
        if any(rates):
            name = _so_many(place, unit) if place is not None else "the trace"
            lines.append(Line(name, range(1, len(rates) + 1), rates))
    lines = lines[:: -(-len(lines) // _MOST_LINES)] if lines else []
    if not lines:
        return []
    chart = line_chart(lines, x_label="position in the draft", y_label="% accepted", scale="zero")
    return [figure("Drafted tokens that were right, by position", chart, source, [line.name for line in lines])]


def _table(runs: Sequence[Mapping[str, Any]], unit: str) -> Markup:
    columns = {name: key for name, key in _COLUMNS.items() if any(run.get(key) is not None for run in runs)}
    has_drafts = any(run.get("spec_decode_acceptance_rate") is not None for run in runs)
    rows = []
    for run in runs:
        place = place_of(run)
        row = [count(place) if place is not None else str(run.get("request_rate", ""))]
        row += [count(run.get(key)) for key in columns.values()]
        if has_drafts:
            row.append(percent(run.get("spec_decode_acceptance_rate")))
        rows.append(row)
    return table([unit, *columns, *(["drafts right"] if has_drafts else [])], rows, num_left=0)


def _notes(runs: Sequence[Mapping[str, Any]], include_text: bool) -> list[Markup]:
    """Failures and remarks; a failure's words are the server's and may quote what was asked."""
    notes = {remark: None for run in runs for remark in run.get("remarks") or ()}
    for run in runs:
        for reason, number in (run.get("failures") or {}).items():
            said = reason if include_text else reason.partition(":")[0][:_REASON_CHARS]
            notes[f"{plural(number, 'request')} failed: {said}"] = None
    return [listing(notes, "notes")]
