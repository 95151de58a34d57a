"""Pieces of a page. Everything that is not Markup already is escaped: text that came with data stays text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup

SIGNS = "●■▲◆▼✚★▶"
"""Stands before a name in a legend; the same shapes are drawn in the chart."""

_LONG_CHARS = 60
"""A cell with more text is given room on narrow screens."""


class Section(NamedTuple):
    """One part of the page."""

    anchor: str
    title: str
    body: Markup


def joined(pieces: Iterable[Markup | str]) -> Markup:
    """One after the other."""
    return Markup("").join(pieces)


def paragraph(text: str | Markup, kind: str = "") -> Markup:
    """A paragraph; `kind` is a class of the style sheet."""
    return Markup("<p class='{}'>{}</p>").format(kind, text) if kind else Markup("<p>{}</p>").format(text)


def heading(text: str) -> Markup:
    """Below a section's own."""
    return Markup("<h3>{}</h3>").format(text)


def listing(items: Iterable[str | Markup], kind: str = "") -> Markup:
    """A list; nothing when there are no items."""
    lines = joined(Markup("<li>{}</li>").format(item) for item in items)
    return Markup("<ul class='{}'>{}</ul>").format(kind, lines) if lines else Markup("")


def tiles(facts: Sequence[tuple[str, str]]) -> Markup:
    """Figures that are read first: (what, how much)."""
    shown = joined(Markup("<div><dt>{}</dt><dd>{}</dd></div>").format(name, value) for name, value in facts)
    return Markup("<dl class='tiles'>{}</dl>").format(shown)


def table(headers: Sequence[str], rows: Iterable[Sequence[str | Markup]], num_left: int = 1) -> Markup:
    """A table that scrolls sideways where the page is narrow; the first `num_left` columns are words."""

    def cells(cell: Markup, values: Sequence[str | Markup]) -> Markup:
        sides = ["left" if place < num_left else "right" for place in range(len(values))]
        kinds = [side + " long" * (len(value) > _LONG_CHARS) for side, value in zip(sides, values, strict=True)]
        return joined(cell.format(kind, value) for kind, value in zip(kinds, values, strict=True))

    head, inner = Markup("<th class='{}'>{}</th>"), Markup("<td class='{}'>{}</td>")
    body = joined(Markup("<tr>{}</tr>\n").format(cells(inner, row)) for row in rows)
    return Markup("<div class='wide'><table><thead><tr>{}</tr></thead><tbody>\n{}</tbody></table></div>\n").format(
        cells(head, headers), body
    )


def figure(title: str, chart: Markup, source: str, legend: Sequence[str] = ()) -> Markup:
    """A chart with its title, what its colours mean, and where its figures come from."""
    names = joined(
        Markup("<span><i class='s{}'>{}</i> {}</span> ").format(place, SIGNS[place % len(SIGNS)], name)
        for place, name in enumerate(legend)
    )
    keys = Markup("<div class='legend'>{}</div>").format(names) if len(legend) > 1 else Markup("")
    return Markup("<figure><figcaption>{}</figcaption>{}{}<small>{}</small></figure>\n").format(
        title, keys, chart, source
    )


def charts(figures: Iterable[Markup]) -> Markup:
    """Side by side as far as there is room."""
    shown = joined(figures)
    return Markup("<div class='charts'>{}</div>\n").format(shown) if shown else Markup("")


def badge(word: str, kind: str) -> Markup:
    """A verdict: `kind` is good, bad or open."""
    return Markup("<b class='badge {}'>{}</b>").format(kind, word)
