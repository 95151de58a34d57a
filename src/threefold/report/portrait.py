"""The section of a load's portrait: when requests come, how long they are, what they share, how far ahead one can see.

Beginnings of prompts are personal text: they are shown only when that was asked for, even where the file has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from threefold.report.charts import Line, Mark, bar_chart, line_chart
from threefold.report.formats import count, is_figure, plural, share
from threefold.report.markup import Section, charts, figure, heading, joined, listing, paragraph, table, tiles
from threefold.report.parts import Part

_LENGTHS = ("mean", "p50", "p90", "p95", "p99", "max")
_LENGTH_WORDS = ("mean", "half are below", "90 % are below", "95 % are below", "99 % are below", "longest")


def portrait_section(parts: Sequence[Part], *, include_text: bool) -> Section:
    """Every portrait."""
    lead = paragraph("What the load looks like: figures of the log, no text of it.", "lead")
    bodies = [_portrait(part, include_text) for part in parts]
    return Section("portrait", "The load", joined([lead, *bodies]))


def _portrait(part: Part, include_text: bool) -> Markup:
    data, source = part.data, part.origin.short
    figures = [*_lengths(data, source), *_reuse(data["prefix"], source), *_predictability(data, source)]
    figures += _bursts(data["arrivals"], source)
    shown = [tiles(_facts(data)), charts(figures), _kinds(data["kinds"]), listing(_notes(data), "notes")]
    if include_text and data.get("samples"):
        shown += [heading("Beginnings of prompts"), listing(data["samples"], "samples")]
    return joined([*shown, part.origin.lines()])


def _facts(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("requests", count(data["num_requests"]))]
    arrivals = data["arrivals"]
    if arrivals is not None:
        facts += [
            ("requests per second", count(arrivals["rate_rps"])),
            ("at the peak", count(arrivals["peak_rate_rps"])),
            ("arrivals", _evenness(arrivals["gamma_shape"])),
        ]
    facts += [
        ("tokens of a prompt, mean", count(data["prompt_tokens"]["mean"])),
        ("tokens of an answer, mean", count(data["output_tokens"]["mean"])),
    ]
    if data["prefix"]["is_known"]:
        facts.append(("prompt tokens seen before", share(data["prefix"]["best_hit_rate"])))
    best = _best_drafter(data["predictability"])
    if best is not None:
        facts.append((f"tokens a step with {best[0]}", count(best[1])))
    return [*facts, ("structured answers", share(data["structured_share"]))]


def _evenness(gamma_shape: float) -> str:
    """A word for how arrivals lie; 1 is what chance makes."""
    return "in bursts" if gamma_shape < 0.7 else "even" if gamma_shape > 1.5 else "as chance has it"


def _best_drafter(predictability: Mapping[str, Any]) -> tuple[str, float] | None:
    known = [(name, one["tokens_a_step"]) for name, one in predictability.items() if one["num_requests"]]
    return max(known, key=lambda pair: pair[1], default=None)


def _lengths(data: Mapping[str, Any], source: str) -> list[Markup]:
    shown = []
    for title, key in (("Prompts, tokens", "prompt_tokens"), ("Answers, tokens", "output_tokens")):
        values = [data[key][name] for name in _LENGTHS]
        chart = bar_chart(_LENGTH_WORDS, values, [count(value) for value in values], x_label="tokens")
        shown.append(figure(title, chart, source))
    return shown


def _reuse(prefix: Mapping[str, Any], source: str) -> list[Markup]:
    if not prefix["is_known"]:
        return []
    sizes = {int(size) * prefix["block_tokens"]: rate for size, rate in prefix["hit_rate_by_blocks"].items()}
    line = Line("found", list(sizes), [100 * rate for rate in sizes.values()])
    levels = [Mark(100 * prefix["best_hit_rate"], "a cache without end")]
    chart = line_chart(
        [line],
        x_label="tokens the cache holds",
        y_label="% of prompt tokens",
        is_log_x=True,
        scale="zero",
        levels=levels,
    )
    return [figure("Shared beginnings that a prefix cache finds, by its size", chart, source)]


def _predictability(data: Mapping[str, Any], source: str) -> list[Markup]:
    lines = [
        Line(name, range(1, len(one["survival"]) + 1), [100 * value for value in one["survival"]])
        for name, one in data["predictability"].items()
        if one["num_requests"]
    ]
    if not lines:
        return []
    chart = line_chart(lines, x_label="position in the draft", y_label="% right that far", scale="zero")
    return [figure("How far ahead drafters see", chart, source, [line.name for line in lines])]


def _bursts(arrivals: Mapping[str, Any] | None, source: str) -> list[Markup]:
    known = (
        {} if arrivals is None else {f"{name} s": at for name, at in arrivals["dispersion"].items() if is_figure(at)}
    )
    if not known:
        return []
    chart = bar_chart(list(known), list(known.values()), [count(value) for value in known.values()],
                      x_label="variance over mean; 1 = chance")  # fmt: skip
    return [figure("Bursts: how uneven arrivals are, by the window they are counted in", chart, source)]


def _kinds(kinds: Mapping[str, Any]) -> Markup:
    known = [name for one in kinds.values() for name, drafts in one["predictability"].items() if drafts["num_requests"]]
    drafters = list(dict.fromkeys(known))
    rows = [
        [kind, count(one["num_requests"]), count(one["mean_prompt_tokens"]), count(one["mean_output_tokens"]),
         *(count(one["predictability"].get(name, {}).get("tokens_a_step")) for name in drafters)]
        for kind, one in kinds.items()
    ]  # fmt: skip
    names = [f"tokens a step, {name}" for name in drafters]
    return table(["kind of request", "requests", "prompt tokens", "answer tokens", *names], rows)


def _notes(data: Mapping[str, Any]) -> list[str]:
    mix = ", ".join(f"{word}: {share(part)}" for word, part in data["temperature"].items())
    notes = [f"Temperature of the requests: {mix}."]
    if data["arrivals"] is None:
        notes.append("The log has no times, or too few, so nothing is said of arrivals.")
    if not data["prefix"]["is_known"]:
        notes.append("The log has neither prompts nor block hashes, so nothing is said of shared beginnings.")
    replayed = data["replay"]
    if replayed["num_sampled"]:
        notes.append(
            f"{replayed['num_sampled']:,} of {plural(replayed['num_replayable'], 'answer')} were replayed through the "
            "drafters; a request that verifies all it is offered writes so many tokens a step."
        )
    else:
        notes.append(f"Nothing is said of drafts: {replayed.get('why_none', 'no answer was replayed')}.")
    if data["num_assumed_lengths"]:
        notes.append(f"{plural(data['num_assumed_lengths'], 'answer')} not in the log; the length is assumed.")
    if data["num_faults"]:
        notes.append(f"{plural(data['num_faults'], 'broken line')} of the log passed over.")
    return notes
