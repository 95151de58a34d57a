"""The section of the ladder: lever upon lever on one model, what each brings and what it does to waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from threefold.report.charts import bar_chart
from threefold.report.formats import count, plural, times
from threefold.report.markup import Section, charts, figure, heading, joined, listing, paragraph, table
from threefold.report.parts import Part


def ladder_section(parts: Sequence[Part], *, include_text: bool) -> Section:  # noqa: ARG001 the sections' form
    """Every ladder that was climbed."""
    lead = paragraph(
        "The same requests, answered with one lever more on each step. The gain is over the step before; waiting is "
        "the middle request's time to the first token (TTFT) and per further token (TPOT).",
        "lead",
    )
    return Section("ladder", "What each lever brings", joined([lead, *(_ladders(part) for part in parts)]))


def _ladders(part: Part) -> Markup:
    result = part.data
    notes = [f"{rung}: passed over: {why}" for rung, why in result["skipped"].items()]
    if result["is_cut"]:
        notes.append("Cut short: the time was used up; what was measured stands.")
    ladders = [_ladder(ladder, part) for ladder in result["ladders"]]
    return joined([listing(result["conclusions"], "verdict"), *ladders, listing(notes, "notes"), part.origin.lines()])


def _ladder(ladder: Mapping[str, Any], part: Part) -> Markup:
    steps = ladder["steps"]
    names = [step["rung"] for step in steps]
    source = part.origin.short
    title = f"{ladder['load']}: {plural(ladder['users'], 'user')}, {plural(ladder['num_requests'], 'request')}"
    gains = [f"{count(step['output_rate'])} ({times(step['total_gain'])})" for step in steps]
    figures = [
        figure(
            "Tokens per second, and times the first step",
            bar_chart(names, [step["output_rate"] for step in steps], gains, x_label="tokens per second"),
            source,
        )
    ]
    for about, key in (("Wait for the first token", "ttft_p50_ms"), ("Wait per further token", "tpot_p50_ms")):
        values = [step[key] for step in steps]
        chart = bar_chart(names, values, [f"{count(value)} ms" for value in values], x_label="ms, middle request")
        figures.append(figure(about, chart, source))
    rows = [
        [step["rung"], count(step["output_rate"]), times(step["gain"]), times(step["total_gain"]),
         count(step["ttft_p50_ms"]), count(step["tpot_p50_ms"])]
        for step in steps
    ]  # fmt: skip
    columns = ["step", "tokens/s", "gain of this step", "in all", "TTFT p50 ms", "TPOT p50 ms"]
    return joined([heading(title), charts(figures), table(columns, rows)])
