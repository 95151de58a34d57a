"""Portrait and advice for eyes, as lines for the terminal. Computes nothing."""

from __future__ import annotations

from typing import Any

from threefold.advise.advise import Advice
from threefold.advise.ladder import LadderResult
from threefold.advise.logged import BLOCK_TOKENS
from threefold.advise.portrait import Portrait
from threefold.advise.verdict import Verdict, users_said
from threefold.bench.report import drawn_table


def portrait_lines(portrait: Portrait) -> list[str]:
    """The portrait."""
    forms = ", ".join(f"{count:,} {form}" for form, count in portrait.forms.items())
    lines = [f"{portrait.num_requests:,} requests ({forms})"]
    if portrait.num_faults:
        lines += [f"{portrait.num_faults} broken lines were passed over:", *(f"  {one}" for one in portrait.faults)]
    lines += _arrival_lines(portrait.arrivals)
    lines += drawn_table(
        ["tokens", "mean", "p50", "p90", "p99", "max"],
        [
            [name, *(f"{spread[key]:.0f}" for key in ("mean", "p50", "p90", "p99", "max"))]
            for name, spread in (("prompt", portrait.prompt_tokens), ("answer", portrait.output_tokens))
        ],
    )
    if portrait.num_assumed_lengths:
        lines.append(f"{portrait.num_assumed_lengths} answers are not in the log; their length is assumed")
    lines += _prefix_lines(portrait.prefix)
    mix = ", ".join(f"{word}: {share:.0%}" for word, share in portrait.temperature.items())
    lines += [f"temperature  {mix}", f"structured   {portrait.structured_share:.0%} of requests"]
    lines += _predictability_lines(portrait)
    lines += [f"sample: {text!r}" for text in portrait.samples]
    return lines


def _arrival_lines(arrivals: dict[str, Any] | None) -> list[str]:
    if arrivals is None:
        return ["arrivals     the log has no times, or too few"]
    shape = arrivals["gamma_shape"]
    word = "bursty" if shape < 0.7 else "even" if shape > 1.5 else "as chance has it"
    dispersion = ", ".join(f"{value:.1f} in {name} s" for name, value in arrivals["dispersion"].items() if value)
    return [
        f"arrivals     {arrivals['rate_rps']:.3g} requests/s over {arrivals['duration_s']:.0f} s, "
        f"peak {arrivals['peak_rate_rps']:.3g}/s; {word} (gamma shape {shape:.2f}; "
        f"dispersion {dispersion or 'unknown'})"
    ]


def _prefix_lines(prefix: dict[str, Any]) -> list[str]:
    if not prefix["is_known"]:
        return ["prefixes     the log has neither prompts nor block hashes"]
    best = prefix["best_hit_rate"]
    lines = [f"prefixes     {best:.0%} of prompt tokens were seen before ({prefix['shared_tokens']:,})"]
    sizes = list(prefix["hit_rate_by_blocks"].items())[1:-1]
    enough = next((place for place, (_, rate) in enumerate(sizes) if f"{rate:.0%}" == f"{best:.0%}"), len(sizes))
    found = ", ".join(f"{int(size):,} blocks {rate:.0%}" for size, rate in sizes[: enough + 1])
    return [*lines, *([f"             found by an LRU cache of {found}; {BLOCK_TOKENS} tokens each"] if best else [])]


def _predictability_lines(portrait: Portrait) -> list[str]:
    replayed = portrait.replay
    if not replayed["num_sampled"]:
        return [f"drafts       {replayed['why_none']}"]
    rows = []
    for kind, facts in {"all": None, **portrait.kinds}.items():
        by_drafter = portrait.predictability if facts is None else facts["predictability"]
        num = portrait.num_requests if facts is None else facts["num_requests"]
        for drafter, known in by_drafter.items():
            if known["num_requests"]:
                curve = " ".join(f"{100 * share:3.0f}" for share in known["survival"])
                rows.append([kind, drafter, str(num), f"{known['drafted_share']:.0%}", f"{known['mean_accepted']:.2f}",
                             f"{known['tokens_a_step']:.2f}", curve])  # fmt: skip
    headers = ["kind", "drafter", "requests", "drafted", "accepted", "tokens/step", "survival % at 1 … 8"]
    return [
        f"drafts       {replayed['num_sampled']} of {replayed['num_replayable']} answers replayed through the drafters",
        *drawn_table(headers, rows, num_left=2),
    ]


def advice_lines(advice: Advice) -> list[str]:
    """The verdicts, their reasons, and what to do."""
    base = advice.base
    lines = [
        f"{advice.model} on {advice.device}",
        f"judged at {users_said(advice.concurrency)}: {advice.concurrency_reason}",
        f"as it is: {base['output_throughput']:.0f} tokens/s, TTFT p50 {base['p50_ttft_ms']:.0f} p90 "
        f"{base['p90_ttft_ms']:.0f} ms, TPOT p50 {base['p50_tpot_ms']:.1f} p90 {base['p90_tpot_ms']:.1f} ms "
        "(simulated: the real scheduler over this load, the measured cost curve in place of the model)",
    ]
    if advice.targets:
        targets = ", ".join(f"{name} {limit:g} ms" for name, limit in advice.targets.items())
        lines.append(f"targets (nine requests in ten): {targets}; " + ("; ".join(advice.missed) or "met as it is"))
    rows = [_verdict_row(one) for one in advice.verdicts]
    lines += drawn_table(["lever", "verdict", "tokens/s", "from … to", "TTFT", "TPOT"], rows, num_left=2)
    lines += ["why:", *(f"  {one.lever}: {_why(one)}" for one in advice.verdicts)]
    lines += ["max_num_seqs, with as many users:", *_knee_lines(advice)]
    return [*lines, "what to do:", *(f"  {line}" for line in advice.summary)]


def ladder_lines(result: LadderResult) -> list[str]:
    """Every ladder, and what it comes to."""
    lines = []
    for ladder in result.ladders:
        rows = [
            [step.rung, f"{step.output_rate:.0f}", f"{step.gain:.2f} x", f"{step.total_gain:.2f} x",
             f"{step.ttft_p50_ms:.0f}", f"{step.tpot_p50_ms:.1f}"]
            for step in ladder.steps
        ]  # fmt: skip
        lines.append(f"{ladder.load}: {users_said(ladder.users)}, {ladder.num_requests} requests")
        lines += drawn_table(["rung", "tokens/s", "gain", "in all", "TTFT p50 ms", "TPOT p50 ms"], rows)
    lines += [f"{rung}: passed over: {why}" for rung, why in result.skipped.items()]
    if result.is_cut:
        lines.append("cut short: the budget is used up, or Ctrl-C; what was measured stands")
    return [*lines, *result.conclusions]


def _verdict_row(one: Verdict) -> list[str]:
    span = f"{one.low:+.0%} … {one.high:+.0%}" if one.low is not None and one.high is not None else ""
    word = f"{one.verdict} (estimate)" if one.is_estimate else one.verdict
    return [one.lever, word, _share(one.change), span, _share(one.ttft_change), _share(one.tpot_change)]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:+.0%}"


def _why(one: Verdict) -> str:
    return "; ".join(part for part in (one.reason, one.flips, one.costs and f"costs {one.costs}", one.quality) if part)


def _knee_lines(advice: Advice) -> list[str]:
    rows = [
        [str(one.max_num_seqs), f"{one.output_rate:.0f}", f"{one.ttft_p90_ms:.0f}", f"{one.tpot_p90_ms:.1f}",
         "; ".join(one.missed)]
        for one in advice.knee
    ]  # fmt: skip
    return drawn_table(["max_num_seqs", "tokens/s", "TTFT p90 ms", "TPOT p90 ms", "breaks"], rows)
