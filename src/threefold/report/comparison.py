"""The section of a comparison: the same load on several servers in turn, and an honest word on what differs."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from threefold.report.charts import Line, span_chart
from threefold.report.formats import count, plural
from threefold.report.markup import Section, charts, figure, joined, listing, paragraph, table
from threefold.report.parts import Part


def comparison_section(parts: Sequence[Part], *, include_text: bool) -> Section:  # noqa: ARG001 the sections' form
    """Every comparison."""
    lead = paragraph(
        "The same load on each side, in turn. Where the spread of the rounds covers no difference, that is said.",
        "lead",
    )
    return Section("comparison", "Side by side", joined([lead, *(_sides(part) for part in parts)]))


def _sides(part: Part) -> Markup:
    data, source = part.data, part.origin.short
    names = [side["name"] for side in data["sides"]]
    rows = []
    figures = []
    for entry in data["figures"]:
        sides = [entry["sides"][name] for name in names]
        against = "; ".join(one["verdict"] for one in entry["against_first"].values())
        values = [f"{count(side['median'])} ({count(side['low'])} to {count(side['high'])})" for side in sides]
        rows.append([entry["figure"], against, *values])
        middle, low, high = ([side[key] for side in sides] for key in ("median", "low", "high"))
        chart = span_chart(names, [Line("median", range(len(names)), middle, low, high)], x_label="median and spread")
        figures.append(figure(entry["figure"], chart, source))
    said = paragraph(f"{plural(data['num_rounds'], 'round')} of {data['rounds_asked']} were whole.")
    ended = [data["ended"]] if data.get("ended") else []
    notes = listing([*ended, *data["remarks"]], "notes")
    return joined(
        [said, charts(figures), table(["figure", "what may be said", *names], rows, num_left=2), notes,
         part.origin.lines()]
    )  # fmt: skip
