"""The section of predicted against measured: how far the advice can be trusted here."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from threefold.advise.verify_cell import Cell, score
from threefold.report.charts import Line, span_chart
from threefold.report.formats import change, count, share
from threefold.report.markup import Section, badge, charts, figure, joined, listing, paragraph, table
from threefold.report.parts import Part

_SIGNS = {
    "right": badge("right", "good"), "wrong": badge("wrong", "bad"), "small": badge("too small", "open"),
    "unclear": badge("may be noise", "open"),
}  # fmt: skip
_CLOSE = {True: badge("yes", "good"), False: badge("no", "bad")}
_COLUMNS = [
    "lever", "users", "requests", "predicted", "measured", "sign", "within 15 points", "tokens/s without it: said",
    "was",
]  # fmt: skip


def verification_section(parts: Sequence[Part], *, include_text: bool) -> Section:  # noqa: ARG001 the sections' form
    """Every advice that was verified."""
    lead = paragraph(
        "The advisor's prediction and the measurement of the same requests on this machine, lever by lever; bars are "
        "about two standard errors of the measurement each way.",
        "lead",
    )
    return Section("verification", "Predicted against measured", joined([lead, *(_cells(part) for part in parts)]))


def _cells(part: Part) -> Markup:
    cells = [Cell(**{key: one[key] for key in Cell.__slots__ if key in one}) for one in part.data["cells"]]
    if not cells:
        return joined([paragraph("Nothing was open, so nothing was measured."), part.origin.lines()])
    loads: dict[str, list[Cell]] = {}
    for cell in cells:
        loads.setdefault(cell.load, []).append(cell)
    shown = charts(_figure(load, members, part) for load, members in loads.items())
    rows = [_row(cell) for cell in cells]
    num_left = 1
    columns = _COLUMNS
    if any(loads):
        columns = ["load", *_COLUMNS]
        rows = [[cell.load, *row] for cell, row in zip(cells, rows, strict=True)]
        num_left = 2
    return joined([listing(score(cells), "verdict"), shown, table(columns, rows, num_left), part.origin.lines()])


def _figure(load: str, cells: Sequence[Cell], part: Part) -> Markup:
    """One load's cells."""
    places = range(len(cells))
    names = [f"{cell.lever}, {cell.users} users" for cell in cells]
    lows, highs = ([100 * (cell.measured + sign * (cell.spread or 0.0)) for cell in cells] for sign in (-1, 1))
    spans = [
        Line("predicted", places, [100 * cell.predicted for cell in cells]),
        Line("measured", places, [100 * cell.measured for cell in cells], lows, highs),
    ]
    chart = span_chart(names, spans, x_label="% tokens per second")
    title = "Change of tokens per second" + (f": {load}" if load else "")
    return figure(title, chart, part.origin.short, [span.name for span in spans])


def _row(cell: Cell) -> list[str | Markup]:
    measured = change(cell.measured) + (f" ± {share(cell.spread)}" if cell.spread is not None else "")
    return [
        cell.lever, str(cell.users), str(cell.num_requests), change(cell.predicted), measured,
        _SIGNS[cell.sign], _CLOSE[cell.is_close], count(cell.predicted_rate), count(cell.measured_rate),
    ]  # fmt: skip
