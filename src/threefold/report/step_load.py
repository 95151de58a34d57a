"""The section of a load that changes at once: who came and went, and in how many steps drafts followed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from threefold.report.charts import Line, Mark, line_chart
from threefold.report.formats import count, is_figure, plural, share
from threefold.report.markup import Section, charts, figure, heading, joined, listing, paragraph, table
from threefold.report.parts import Part

_MOST_POINTS = 60
"""Of a line; a point is then the mean of several steps."""
_DRAFTS = (("verified", "admitted"), ("asked for", "asked"))

Step = Mapping[str, Any]


def step_load_section(parts: Sequence[Part], *, include_text: bool) -> Section:  # noqa: ARG001 the sections' form
    """Every load that was measured."""
    lead = paragraph(
        "Users come and go all at once. The engine drafts less as more rows share a step; here is how soon it follows.",
        "lead",
    )
    return Section("step-load", "When the load changes at once", joined([lead, *(_load(part) for part in parts)]))


def _load(part: Part) -> Markup:
    data, source = part.data, part.origin.short
    steps = data["steps"]
    size = -(-len(steps) // _MOST_POINTS)
    changes = [Mark(change["at_step"], f"{change['from']} → {change['to']}") for change in data["changes"]]

    def drawn(title: str, label: str, values: Mapping[str, Callable[[Sequence[Step]], float]]) -> Markup:
        lines = [_line(name, steps, size, value) for name, value in values.items()]
        chart = line_chart(lines, x_label="step", y_label=label, scale="zero", knees=changes)
        about = title if size == 1 else f"{title}, mean over {size} steps"
        return figure(about, chart, source, [line.name for line in lines])

    figures = [
        drawn("Users, and rows that write", "number", {"users": _mean("users"), "rows past their prompt":
                                                       _mean("committing")}),
        drawn("Drafts of a row", "drafts a row", {name: _a_row(key) for name, key in _DRAFTS}),
        drawn("Time of a step", "ms", {"a step": _mean("ms")}),
    ]  # fmt: skip
    failed = [f"{plural(data['num_failed'], 'request')} failed."] if data["num_failed"] else []
    title = f"{str(data['model_id']).rsplit('/', maxsplit=1)[-1]}, {data['group']}"
    return joined(
        [heading(title), listing(_words(data), "verdict"), charts(figures), _table(data["changes"]),
         listing(failed, "notes"), part.origin.lines()]
    )  # fmt: skip


def _line(name: str, steps: Sequence[Step], size: int, value: Callable[[Sequence[Step]], float]) -> Line:
    """One point for every `size` steps, at the first of them."""
    starts = range(0, len(steps), size)
    return Line(name, list(starts), [value(steps[start : start + size]) for start in starts])


def _mean(key: str) -> Callable[[Sequence[Step]], float]:
    return lambda steps: sum(step[key] for step in steps) / len(steps)


def _a_row(key: str) -> Callable[[Sequence[Step]], float]:
    """Of rows that commit: a row at its prompt has no drafts."""
    return lambda steps: sum(step[key] for step in steps) / max(sum(step["committing"] for step in steps), 1)


def _words(data: Mapping[str, Any]) -> list[str]:
    lines = []
    for change in data["changes"]:
        said = [f"drafts {name} settle {_after(change[key])}" for name, key in _DRAFTS]
        lines.append(f"From {change['from']} to {plural(change['to'], 'user')}: {', '.join(said)}.")
    drafted, accepted = data["num_draft_tokens"], data["num_accepted_tokens"]
    if drafted:
        lines.append(f"{share(accepted / drafted)} of {drafted:,} drafts that were verified were right.")
    return lines


def _after(found: Mapping[str, Any]) -> str:
    steps = found["settled_after_steps"]
    return f"after {plural(steps, 'step')}" if is_figure(steps) else "never"


def _table(changes: Sequence[Mapping[str, Any]]) -> Markup:
    rows = []
    for change in changes:
        row = [f"{change['from']} → {change['to']}", str(change["at_step"]), count(change["rows_in_place_after_steps"])]
        for _, key in _DRAFTS:
            found = change[key]
            row += [count(found["settled_after_steps"]), count(found["steady_per_row"]), share(found["share_within"])]
        rows.append(row)
    columns = ["users", "at step", "all rows write after"]
    for name, _ in _DRAFTS:
        columns += [f"drafts {name} settle after", "then a row", "in the band"]
    return table(columns, rows)
