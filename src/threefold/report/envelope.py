"""The section of the envelope: does speculation that decides for itself ever lose against any fixed setting?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from threefold.bench.envelope_table import headers, outcome_lines, row
from threefold.report.charts import Line, Mark, line_chart
from threefold.report.markup import Section, badge, charts, figure, joined, listing, paragraph, table
from threefold.report.parts import Part

_WORDS = {True: ("holds", "good"), False: ("fails", "bad"), None: ("open", "open")}
_WORD_COLUMNS = 3
"""Of the terminal's table: load, users, drafter."""
_JUDGED = (("adaptive_over_best", "never loses"), ("gated_over_off", "costs nothing when idle"))


def envelope_section(parts: Sequence[Part], *, include_text: bool) -> Section:  # noqa: ARG001 the sections' form
    """Every table that was measured."""
    lead = paragraph(
        "Speculation guesses the next words cheaply and lets the model check several at once. Guessing wrong costs "
        "time, so a fixed setting can lose. Here the setting that adapts itself stands against none at all and "
        "against every fixed draft length, load by load: 1 is the speed without speculation, bars are the spread.",
        "lead",
    )
    return Section("envelope", "Does speculation ever lose?", joined([lead, *(_table(part) for part in parts)]))


def _table(part: Part) -> Markup:
    result = part.data
    cells = result["cells"]
    groups = dict.fromkeys((cell["group"], cell["method"]) for cell in cells)
    figures = [
        _chart([cell for cell in cells if (cell["group"], cell["method"]) == group], result, part) for group in groups
    ]
    names = headers(dict(result))
    names[_WORD_COLUMNS:_WORD_COLUMNS] = [name for _, name in _JUDGED]
    rows: list[list[str | Markup]] = []
    for cell in cells:
        said = [badge(*_WORDS[cell[key]["holds"]]) for key, _ in _JUDGED]
        rows.append([*row(cell)[:_WORD_COLUMNS], *said, *row(cell)[_WORD_COLUMNS:]])
    outcome = listing(outcome_lines(dict(result)), "verdict")
    return joined(
        [
            outcome,
            charts(figures),
            table(names, rows, num_left=_WORD_COLUMNS + len(_JUDGED)),
            listing(result["notes"], "notes"),
            part.origin.lines(),
        ]
    )


def _chart(cells: Sequence[Mapping[str, Any]], result: Mapping[str, Any], part: Part) -> Markup:
    """Tokens a second over those without speculation, by users."""
    ordered = sorted(cells, key=lambda cell: cell["concurrency"])
    names = [name for name in ("adaptive", *result["variants"]) if name != "off"]
    lines = [_line(name, ordered) for name in dict.fromkeys(names)]
    chart = line_chart(
        lines,
        x_label="users at once",
        y_label="speed, off = 1",
        is_log_x=True,
        scale="free",
        levels=[Mark(1.0, "")],
    )
    title = f"{cells[0]['group'].replace(',', ', ')}: {cells[0]['method']}"
    return figure(title, chart, part.origin.short, [line.name for line in lines])


def _line(name: str, cells: Sequence[Mapping[str, Any]]) -> Line:
    users = [cell["concurrency"] for cell in cells]
    off = [cell["variants"]["off"]["median"] for cell in cells]
    middle, low, high = (
        [cell["variants"][name][key] / base for cell, base in zip(cells, off, strict=True)]
        for key in ("median", "low", "high")
    )
    return Line(name, users, middle, low, high)
