"""The sections of the advisor: what to do and why, and what tune settled by measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from markupsafe import Markup

from threefold.advise.knee import KneePoint, find_knee
from threefold.advise.verdict import OFF, ON
from threefold.report.charts import Line, Mark, line_chart, span_chart
from threefold.report.formats import change, count
from threefold.report.markup import Section, badge, charts, figure, heading, joined, listing, paragraph, table
from threefold.report.parts import Part

_MOST_LINES = 6
_KINDS = {ON: "good", OFF: "bad"}


def advice_section(parts: Sequence[Part], *, include_text: bool) -> Section:  # noqa: ARG001 the sections' form
    """Every piece of advice."""
    return Section("advice", "What to do", joined(_advice(part) for part in parts))


def _advice(part: Part) -> Markup:
    data, source = part.data, part.origin.short
    base = data["base"]
    users = data["concurrency"]
    lead = (
        f"{data['model']} on {data['device']}, judged at {users} users ({data['concurrency_reason']}). As it is: "
        f"{count(base['output_throughput'])} tokens/s, first token after {count(base['p50_ttft_ms'])} ms, then "
        f"{count(base['p50_tpot_ms'])} ms per token for the middle request. Simulated: the real scheduler over this "
        "load, with the measured cost of steps in place of the model."
    )
    pieces = [paragraph(lead, "lead"), listing(data["summary"], "verdict"), _targets(data)]
    figures = [*_changes(data, source), *_by_users(data, source), *_knee(data["knee"], source)]
    return joined([*pieces, charts(figures), _verdicts(data["verdicts"]), part.origin.lines()])


def _targets(data: Mapping[str, Any]) -> Markup:
    if not data["targets"]:
        return Markup("")
    wanted = ", ".join(f"{name} {count(limit)} ms" for name, limit in data["targets"].items())
    return paragraph(f"Targets for nine requests in ten: {wanted}: {'; '.join(data['missed']) or 'met as it is'}.")


def _changes(data: Mapping[str, Any], source: str) -> list[Markup]:
    known = [one for one in data["verdicts"] if one["change"] is not None and one["low"] is not None]
    if not known:
        return []
    middle, low, high = ([100 * one[key] for one in known] for key in ("change", "low", "high"))
    names = [one["lever"] + (" (estimate)" if one["is_estimate"] else "") for one in known]
    chart = span_chart(names, [Line("expected", range(len(known)), middle, low, high)], x_label="% tokens per second")
    return [figure(f"What each lever changes at {data['concurrency']} users", chart, source)]


def _by_users(data: Mapping[str, Any], source: str) -> list[Markup]:
    """Where verdicts flip: levers that change anything worth a line, the greatest first."""
    lines = [
        Line(one["lever"], [gain["concurrency"] for gain in one["by_load"]],
             [1 + gain["change"] for gain in one["by_load"]])
        for one in data["verdicts"]
        if len(one["by_load"]) > 1
    ]  # fmt: skip
    lines = sorted(lines, key=lambda line: -max(abs(value - 1) for value in line.ys))[:_MOST_LINES]
    if not lines:
        return []
    chart = line_chart(lines, x_label="users at once", y_label="speed, without it = 1", is_log_x=True,
                       scale="free", levels=[Mark(1.0, "")])  # fmt: skip
    return [figure("What levers change, by the number of users", chart, source, [line.name for line in lines])]


def _knee(points: Sequence[Mapping[str, Any]], source: str) -> list[Markup]:
    """Throughput and waiting against max_num_seqs."""
    if len(points) < 2:
        return []
    knee, _ = find_knee([KneePoint(**point) for point in points])
    knees = [Mark(knee.max_num_seqs, "knee")] if knee is not None else []
    sizes = [point["max_num_seqs"] for point in points]
    shown = []
    for title, key, label in (
        ("Tokens per second, by requests that run at once", "output_rate", "tokens per second"),
        ("Time to the first token (TTFT), nine in ten", "ttft_p90_ms", "ms to first token"),
        ("Time per further token (TPOT), nine in ten", "tpot_p90_ms", "ms per token"),
    ):
        line = Line("as many users", sizes, [point[key] for point in points])
        chart = line_chart([line], x_label="max_num_seqs", y_label=label, is_log_x=True, knees=knees)
        shown.append(figure(title, chart, source))
    return shown


def _verdicts(verdicts: Sequence[Mapping[str, Any]]) -> Markup:
    rows = []
    for one in verdicts:
        word = one["verdict"] + (" (estimate)" if one["is_estimate"] else "")
        span = f"{change(one['low'])} to {change(one['high'])}" if one["low"] is not None else ""
        parts = (one["reason"], one["flips"], one["costs"] and f"costs {one['costs']}", one.get("quality"))
        why = "; ".join(part for part in parts if part)
        rows.append(
            [one["lever"], badge(word, _KINDS.get(one["verdict"], "open")), one["setting"], why,
             change(one["change"]), span, change(one["ttft_change"]), change(one["tpot_change"])]
        )  # fmt: skip
    names = ["lever", "verdict", "what to type", "why", "tokens/s", "from … to", "TTFT", "TPOT"]
    return table(names, rows, num_left=4)


def tuned_section(parts: Sequence[Part], *, include_text: bool) -> Section:  # noqa: ARG001 the sections' form
    """What tune measured and wrote down."""
    lead = paragraph(
        "What was left open was measured on this machine; the settings are for threefold serve --config.", "lead"
    )
    return Section("tuned", "Settled by measurement", joined([lead, *(_tuned(part) for part in parts)]))


def _tuned(part: Part) -> Markup:
    settings = yaml.safe_dump(dict(part.data["settings"]), sort_keys=False) if part.data["settings"] else "{}\n"
    swept = part.data.get("sweep")
    figures = _knee((swept or part.data)["points"], part.origin.short)
    file = Markup("<pre>{}</pre>").format(settings)
    return joined(
        [listing(part.data["reasons"], "verdict"), charts(figures), heading("threefold.yaml"), file,
         part.origin.lines()]
    )  # fmt: skip
