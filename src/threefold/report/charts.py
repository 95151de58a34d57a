"""Charts as SVG that stands in the page: drawn by matplotlib, coloured by the page's style sheet.

No script is needed: text stays text, colours are names that the style sheet fills for dark and light, and each point
has a title that browsers show when the pointer rests on it. Knows figures and names, nothing about what they mean.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from markupsafe import Markup

from threefold.errors import ConfigError
from threefold.report.formats import count, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INSTALL = "pip install 'threefold[plot]'"
WIDTH_IN = 4.7
HEIGHT_IN = 2.9
ROW_IN = 0.3
"""A row of bars."""
_INK, _GRID, _PANEL = "#010101", "#010102", "#010103"  # stand for the style sheet's; put in once the chart is drawn
_OVER_THE_GRID = {"facecolor": _PANEL, "edgecolor": "none", "pad": 0.5}
"""Behind a word that lines would strike through."""
_SERIES = tuple(f"#0102{place:02x}" for place in range(8))
_MARKERS = "os^DvP*>"
_STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "threefold", "text.parse_math": False, "font.size": 10,
    "axes.edgecolor": _GRID, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK, "text.color": _INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "grid.color": _GRID,
    "xtick.labelsize": 9, "ytick.labelsize": 9,
}  # fmt: skip
Scale = Literal["wide", "zero", "free"]
_LOG_ABOVE = 40.0
"""Values further apart than this are drawn on a logarithmic axis."""
_MOST_TICKS = 9


class Line(NamedTuple):
    """One line of a chart, or one kind of points."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    lows: Sequence[float] = ()
    highs: Sequence[float] = ()
    """How far each value spreads; empty = not known."""


class Mark(NamedTuple):
    """A place on an axis worth a line."""

    at: float
    word: str


@dataclass(slots=True)
class _Drawing:
    """A chart being drawn."""

    axes: Axes
    tips: list[str] = field(default_factory=list)
    """Titles of points, by their number in the SVG."""
    svg: Markup = field(default_factory=Markup)
    """The chart, once it is done."""

    def tip(self, x: float, y: float, color: str, text: str) -> None:
        """Put an invisible point over a visible one, for the pointer to rest on."""
        self.axes.plot([x], [y], "o", markersize=13, alpha=0.0, color=color, gid=f"tip-{len(self.tips)}", zorder=9)
        self.tips.append(text)


def check_charts(flag: str) -> None:
    """Refuse before the work what could not be drawn after it.

    Raises:
        ConfigError: matplotlib is missing.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError(f"{flag} needs matplotlib, which is not installed: {INSTALL}") from None


def check_html(path: str | None) -> None:
    """The same for a command's --html; None = no page is asked for.

    Raises:
        ConfigError: as check_charts.
    """
    if path is not None:
        check_charts("--html")


def line_chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    is_log_x: bool = False,
    scale: Scale = "wide",
    knees: Sequence[Mark] = (),
    levels: Sequence[Mark] = (),
) -> Markup:
    """Lines over an axis of numbers.

    Args:
        lines: what is drawn, each in a colour and with a marker of its own.
        x_label: below the chart.
        y_label: beside it; it names the figure in titles of points.
        is_log_x: powers of two lie evenly.
        scale: of the values: wide = from 0, logarithmic where they lie far apart; zero = from 0; free = as they lie.
        knees: vertical marks.
        levels: horizontal marks.
    """
    with _drawing(f"{y_label} against {x_label}", HEIGHT_IN) as drawing:
        axes = drawing.axes
        for place, line in enumerate(lines):
            _draw_line(drawing, place, line, x_label)
        if is_log_x:
            axes.set_xscale("log", base=2)
        xs = sorted({x for line in lines for x in line.xs})
        ticks = xs if len(xs) <= _MOST_TICKS else xs[:: -(-len(xs) // _MOST_TICKS)]
        axes.set_xticks(ticks, [short(x) for x in ticks])
        axes.minorticks_off()
        _scale_values(axes, [y for line in lines for y in (*line.ys, *line.highs)], scale)
        for knee in knees:
            axes.axvline(knee.at, color=_INK, linestyle="--", linewidth=1)
            axes.annotate(knee.word, (knee.at, 1), (3, -1), xycoords=("data", "axes fraction"), va="top", fontsize=9,
                          textcoords="offset points")  # fmt: skip
        low, high = axes.get_ylim()
        for level in (one for one in levels if low <= one.at <= high):
            axes.axhline(level.at, color=_INK, linestyle=":", linewidth=1)
            axes.annotate(level.word, (1, level.at), (-2, 6), xycoords=("axes fraction", "data"), ha="right",
                          fontsize=9, textcoords="offset points", bbox=_OVER_THE_GRID)  # fmt: skip
        axes.grid(visible=True, linewidth=0.5)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
    return drawing.svg


def bar_chart(names: Sequence[str], values: Sequence[float], labels: Sequence[str], *, x_label: str) -> Markup:
    """Bars lying one below the other, each with its own label at its end."""
    from matplotlib.ticker import MaxNLocator

    with _drawing(x_label, _height(len(names))) as drawing:
        axes = drawing.axes
        places = range(len(names))
        axes.barh(places, values, color=_SERIES[0], height=0.62)
        _name_rows(axes, names)
        axes.set_xlim(0, 1.3 * max([*values, 1e-9]))
        for place, (name, value, label) in enumerate(zip(names, values, labels, strict=True)):
            axes.annotate(label, (value, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
            drawing.tip(value, place, _SERIES[0], f"{name}: {label}")
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
        axes.set_xlabel(x_label)
    return drawing.svg


def span_chart(names: Sequence[str], spans: Sequence[Line], *, x_label: str, zero: float = 0.0) -> Markup:
    """Values with what they may be, one row each: `xs` of a line are the places of its rows, `ys` their values."""
    with _drawing(x_label, _height(len(names))) as drawing:
        axes = drawing.axes
        axes.axvline(zero, color=_INK, linewidth=1)
        for place, span in enumerate(spans):
            color = _SERIES[place]
            rows = [x + 0.22 * (place - (len(spans) - 1) / 2) for x in span.xs]
            axes.errorbar(span.ys, rows, xerr=_reach(span), fmt=_MARKERS[place], color=color, capsize=3, markersize=6)
            for row, x, value in zip(rows, span.xs, span.ys, strict=True):
                drawing.tip(value, row, color, f"{names[int(x)]}, {span.name}: {value:+.1f} {x_label}")
        _name_rows(axes, names)
        axes.grid(visible=True, axis="x", linewidth=0.5)
        axes.set_xlabel(x_label)
    return drawing.svg


def _draw_line(drawing: _Drawing, place: int, line: Line, x_label: str) -> None:
    color = _SERIES[place % len(_SERIES)]
    drawing.axes.errorbar(
        line.xs, line.ys, yerr=_reach(line), color=color, marker=_MARKERS[place % len(_MARKERS)], markersize=5,
        linewidth=1.8, capsize=2, elinewidth=1,
    )  # fmt: skip
    for index, (x, y) in enumerate(zip(line.xs, line.ys, strict=True)):
        spread = f" ({count(line.lows[index])} to {count(line.highs[index])})" if line.lows else ""
        drawing.tip(x, y, color, f"{line.name}: {count(y)}{spread}, {x_label}: {count(x)}")


def _reach(line: Line) -> list[list[float]] | None:
    """Distances to both ends, as error bars want them."""
    if not line.lows:
        return None
    below = [max(y - low, 0.0) for y, low in zip(line.ys, line.lows, strict=True)]
    return [below, [max(high - y, 0.0) for y, high in zip(line.ys, line.highs, strict=True)]]


def _scale_values(axes: Axes, values: Sequence[float], scale: Scale) -> None:
    from matplotlib.ticker import LogLocator

    low, high = min(values, default=0.0), max(values, default=0.0)
    if scale == "wide" and low > 0 and high > _LOG_ABOVE * low:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.minorticks_off()
    elif scale != "free":
        axes.set_ylim(0, 1.1 * high if high > 0 else 1.0)
    axes.yaxis.set_major_formatter(lambda value, _: short(value))


def _height(num_rows: int) -> float:
    return 0.75 + ROW_IN * max(num_rows, 1)


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    shown = ["".join(letter if letter.isprintable() else "?" for letter in name) for name in names]
    axes.set_yticks(range(len(names)), shown)
    axes.set_ylim(len(names) - 0.5, -0.5)  # the first on top
    axes.tick_params(axis="y", length=0)


@contextmanager
def _drawing(described: str, height_in: float) -> Iterator[_Drawing]:
    """An empty chart; when the block is left, it has its SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # the browser's fonts are used, not matplotlib's
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        drawing = _Drawing(figure.subplots())
        yield drawing
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata=dict.fromkeys(_METADATA))
        drawing.svg = _in_page(out.getvalue(), drawing.tips, described)


_METADATA = ("Creator", "Date", "Format", "Type")
_COLORS = {_INK: "var(--ink)", _GRID: "var(--grid)", _PANEL: "var(--panel)"} | {
    color: f"var(--s{place})" for place, color in enumerate(_SERIES)
}


def _in_page(svg: str, tips: Sequence[str], described: str) -> Markup:
    """A file's SVG as a piece of a page: no size, no names, colours of the style sheet, titles on points."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'(<svg [^>]*?)width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg [^>]*?)height="[^"]*"', r"\1", svg, count=1)
    for color, name in _COLORS.items():
        svg = svg.replace(color, name)
    titled = {
        f'<g id="tip-{number}">': Markup('<g class="tip"><title>{}</title>').format(tip)
        for number, tip in enumerate(tips)
    }
    svg = re.sub(r'<g id="[^"]*">', lambda found: titled.get(found[0], "<g>"), svg)
    opening = Markup('<svg role="img" aria-label="{}" ').format(described)
    return Markup(svg.replace("<svg ", opening, 1))  # noqa: S704 matplotlib escaped its texts, the titles are above
