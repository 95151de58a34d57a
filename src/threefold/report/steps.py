"""The section of a step's time: what the host does, what the device does, and how the two lie beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from threefold.report.charts import Line, bar_chart, line_chart
from threefold.report.formats import count, plural
from threefold.report.markup import Section, charts, figure, heading, joined, paragraph, table
from threefold.report.parts import Part

_HOST = {
    "planning": "plan", "launching": "launch", "waiting for the device": "wait", "committing": "commit",
    "packing for sending": "stream",
}  # fmt: skip
_DEVICE = {"work on the step": "device", "drafts": "draft", "rest before it": "idle"}
_COLUMNS = (*_HOST.values(), "step", *_DEVICE.values())


def steps_section(parts: Sequence[Part], *, include_text: bool) -> Section:  # noqa: ARG001 the sections' form
    """Every number of rows that was measured, the fewest first; one model's make one table."""
    lead = paragraph(
        "A step as host and device spend it, medians over many; where steps overlap the host's times lie beside the "
        "device's, so they do not add up to the step's.",
        "lead",
    )
    models: dict[str, list[Part]] = {}
    for part in parts:
        models.setdefault(str(part.data["model_id"]), []).append(part)
    bodies = [_model(sorted(members, key=lambda part: part.data["rows"])) for members in models.values()]
    return Section("steps", "Where a step's time goes", joined([lead, *bodies]))


def _model(parts: Sequence[Part]) -> Markup:
    title = str(parts[0].data["model_id"]).rsplit("/", maxsplit=1)[-1]
    figures = [*_by_rows(parts), *(shown for part in parts for shown in _bars(part))]
    known = [key for key in _COLUMNS if any(_median(key) in part.data for part in parts)]
    rows = [_row(part.data, known) for part in parts]
    columns = ["requests at once", "tokens/s", *(f"{key} ms" for key in known), "step p99 ms"]
    origins = dict.fromkeys(part.origin.lines() for part in parts)
    return joined([heading(title), charts(figures), table(columns, rows, num_left=0), *origins])


def _by_rows(parts: Sequence[Part]) -> list[Markup]:
    """A step's time and the device's, by the number of requests."""
    sizes = [part.data["rows"] for part in parts]
    if len(set(sizes)) < 2:
        return []
    lines = [
        Line(name, sizes, [part.data[_median(key)] for part in parts])
        for name, key in (("the whole step", "step"), ("the device's work", "device"))
    ]
    chart = line_chart(lines, x_label="requests at once", y_label="ms a step", is_log_x=True)
    return [figure("A step, by requests at once", chart, parts[0].origin.short, [line.name for line in lines])]


def _bars(part: Part) -> list[Markup]:
    data, source = part.data, part.origin.short
    about = f"{plural(data['rows'], 'request')} at once"
    host = {name: data[_median(key)] for name, key in {**_HOST, **_DEVICE}.items() if _median(key) in data}
    shown = [figure(f"Host and device, {about}", _milliseconds(host), source)]
    if data["parts_ms"]:
        shown.append(figure(f"The device's work by kind, {about}", _milliseconds(data["parts_ms"]), source))
    return shown


def _milliseconds(values: Mapping[str, float]) -> Markup:
    labels = [f"{count(value)} ms" for value in values.values()]
    return bar_chart(list(values), list(values.values()), labels, x_label="ms a step")


def _median(key: str) -> str:
    """The result's own name for it."""
    return f"median_{key}_ms"


def _row(data: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    medians = [count(data.get(_median(key))) for key in keys]
    return [str(data["rows"]), count(data["output_throughput"]), *medians, count(data["p99_step_ms"])]
