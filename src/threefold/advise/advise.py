"""Portrait, cost curve and targets to a verdict for every lever, each with its reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from threefold.advise.evaluate import ROW_STEPS, Evaluator
from threefold.advise.facts import MachineFacts
from threefold.advise.judge import Judge
from threefold.advise.knee import KneePoint, find_knee, judge_batched_tokens, judge_knee, knee_curve
from threefold.advise.levers import KV8, QUANTISED, Assumptions, Variant, base_variant, lever_variants
from threefold.advise.portrait import Portrait
from threefold.advise.quality import quality_words
from threefold.advise.replay import Replay
from threefold.advise.targets import missed
from threefold.advise.trace import TraceRequest
from threefold.advise.verdict import (
    OFF,
    ON,
    SAME,
    UNKNOWN,
    Verdict,
)

SAMPLES = 5
"""Samples of the load for the interval."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user wants to know."""

    concurrency: int | None = None
    """Users; None = as many as the log's own rate comes to."""
    targets: Mapping[str, float] | None = None
    """Milliseconds by ttft, tpot, e2e."""
    assumed: Assumptions = field(default_factory=Assumptions)
    samples: int = SAMPLES
    row_steps: int = ROW_STEPS
    """Output tokens simulated for one figure."""
    quality: Mapping[str, str] = field(default_factory=dict)
    """What quantising was measured to do to answers, by lever."""
    forms: Mapping[str, MachineFacts] = field(default_factory=dict)
    """The machine with the model in other forms, by lever, as far as they were measured."""


@dataclass(slots=True)
class Advice:
    """All that is said."""

    model: str
    device: str
    concurrency: int
    """Users that the verdicts are for."""
    concurrency_reason: str
    base: dict[str, Any]
    """The load on the engine as it is, at that concurrency."""
    targets: dict[str, float]
    missed: list[str]
    """Targets that the base breaks."""
    knee: list[KneePoint]
    verdicts: list[Verdict]
    summary: list[str]
    """What to do, in words."""
    assumed: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def advise(
    facts: MachineFacts,
    trace: Sequence[TraceRequest],
    replayed: Replay,
    portrait: Portrait,
    wishes: Wishes,
    *,
    say: Callable[[str], None],
) -> Advice:
    """Judge every lever.

    Args:
        facts: model and machine.
        trace: the load.
        replayed: what drafters do for it.
        portrait: of the load.
        wishes: users, targets, assumptions.
        say: told what is being done.
    """
    base = base_variant(facts)
    evaluator = Evaluator(trace, replayed, draft_acceptance=wishes.assumed.draft_acceptance, row_steps=wishes.row_steps)
    concurrency, why = _concurrency(evaluator, base, wishes)
    targets = dict(wishes.targets or {})
    say(f"simulating the load with up to {base.settings.max_num_seqs} running requests")
    knee = knee_curve(evaluator, base, targets)
    verdicts = [
        judge_knee(knee, base.settings.max_num_seqs),
        judge_batched_tokens(evaluator, base, concurrency, targets),
    ]
    judge = Judge(evaluator, base, concurrency, wishes.samples, targets)
    for variant in lever_variants(facts, replayed.propose_ms, wishes.assumed, wishes.forms):
        say(f"simulating {variant.name}")
        unknown = _cannot_say(variant, portrait, facts)
        if unknown is None:
            verdicts.append(judge.verdict(variant))
            verdicts[-1].quality = quality_words(variant.name, wishes.quality)
        else:
            verdicts.append(unknown)
    now = judge.base_results[0] if judge.base_results else evaluator.run(base, concurrency, 0)
    return Advice(
        model=facts.model,
        device=facts.device,
        concurrency=concurrency,
        concurrency_reason=why,
        base=now.to_dict(),
        targets=targets,
        missed=missed(now, targets),
        knee=knee,
        verdicts=verdicts,
        summary=_summary(verdicts, find_knee(knee)[0] is None),
        assumed=asdict(wishes.assumed),
    )


def _concurrency(evaluator: Evaluator, base: Variant, wishes: Wishes) -> tuple[int, str]:
    limit = 4 * base.settings.max_num_seqs
    if wishes.concurrency is not None:
        return min(wishes.concurrency, limit), "as asked"
    own = evaluator.own_concurrency(base)
    if own is None:
        return min(16, base.settings.max_num_seqs), "the log has no times; --concurrency says how many users there are"
    mean, result = own
    rate = result.num_done / result.duration_s if result.duration_s else 0.0
    if mean > base.settings.max_num_seqs:
        return base.settings.max_num_seqs, f"the log comes faster than this machine serves it ({rate:.2g} requests/s)"
    return max(round(mean), 1), f"requests in flight when the log comes at its own rate ({rate:.2g} requests/s)"


def _cannot_say(variant: Variant, portrait: Portrait, facts: MachineFacts) -> Verdict | None:
    """Where log or machine do not hold what a verdict would rest on."""
    reason = ""
    if variant.drafter in ("ngram", "suffix") and not portrait.replay["num_sampled"]:
        reason = portrait.replay["why_none"]
    elif variant.name in QUANTISED and not facts.is_gpu:
        reason = "reckoned for cards only: on a CPU eight bits are not faster"
    elif variant.name in QUANTISED and variant.name != KV8 and facts.quantization:
        reason = f"the weights are quantised already ({facts.quantization})"
    elif variant.name == KV8 and facts.is_kv8:
        reason = "the KV cache has 8 bits already"
    elif variant.name == "prefix caching" and not portrait.prefix["is_known"]:
        reason = "the log has neither prompts nor block hashes"
    return Verdict(variant.name, UNKNOWN, reason=reason) if reason else None


def _summary(verdicts: Sequence[Verdict], is_hopeless: bool) -> list[str]:
    """What to do; "do nothing" when nothing pays."""
    lines = []
    if is_hopeless:
        lines.append("The targets cannot be met on this machine at any concurrency; loosen them or change the machine.")
    measured = [one for one in verdicts if not one.is_estimate and one.verdict not in (SAME, UNKNOWN) and one.setting]
    drafts = [one for one in measured if one.lever in ("ngram", "suffix") and one.verdict == ON]
    best = max(drafts, key=lambda one: one.change or 0.0, default=None)
    for one in measured:
        if one.lever in ("ngram", "suffix") and one is not best:
            continue  # one drafter is enough, and a drafter that does not pay costs nothing
        if one.lever == "max_num_seqs":
            lines.append(f"{one.setting}: {one.reason}.")
        elif one.lever == "prefix caching" and one.verdict == ON:
            lines.append(f"Keep prefix caching on: {_percent(one)}.")
        elif one.lever in QUANTISED:
            lines.append(f"{one.setting}: {_percent(one)}; {one.quality or f'costs {one.costs}'}.")
        else:
            lines.append(f"{one.setting}: {_percent(one)}.")
    if not [one for one in measured if one.lever != "prefix caching" and (one.verdict != OFF)] and not is_hopeless:
        lines.append("Otherwise do nothing: no other lever pays for this load; the defaults are right.")
    promising = [one for one in verdicts if one.is_estimate and one.verdict == ON]
    for one in promising:
        price = one.quality or f"costs {one.costs}"
        lines.append(f"Worth measuring (estimated): {one.lever}, {_percent(one)}; {price}.")
    return lines


def _percent(one: Verdict) -> str:
    said = f"{one.change:+.0%} tokens/s" if one.change is not None else "no figure"
    return said + (f" ({one.low:+.0%} to {one.high:+.0%})" if one.low is not None and one.high is not None else "")
