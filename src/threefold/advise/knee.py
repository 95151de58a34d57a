"""How many requests at once, and how many tokens a step: where throughput stops to rise, or the targets break."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from threefold.advise.evaluate import Evaluator
from threefold.advise.levers import Variant
from threefold.advise.result import LoadResult
from threefold.advise.targets import missed
from threefold.advise.verdict import SAME, Verdict

LEAST_RISE = 0.05
"""A doubling of the running requests that brings less is past the knee."""
BATCHED_TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True)
class KneePoint:
    """What so many running requests come to, with as many users."""

    max_num_seqs: int
    output_rate: float
    ttft_p90_ms: float
    tpot_p90_ms: float
    missed: tuple[str, ...]
    """Targets that break."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def knee_curve(evaluator: Evaluator, base: Variant, targets: Mapping[str, float]) -> list[KneePoint]:
    """One point for every power of two up to what memory was planned for, all over the same requests."""
    points = []
    limit = base.settings.max_num_seqs
    places = evaluator.places(0, max(evaluator.most_requests(), 2 * limit))
    for size in knee_sizes(limit):
        variant = replace(base, settings=replace(base.settings, max_num_seqs=size))
        result = evaluator.run(variant, size, 0, places)
        points.append(point_of(size, result, targets))
    return points


def knee_sizes(limit: int) -> list[int]:
    """Every power of two below the limit, and the limit."""
    return [2**power for power in range(20) if 2**power < limit] + [limit]


def steps_apart(size: int, other: int) -> float:
    """Doublings between two sizes."""
    return round(abs(math.log2(size / other)), 2)


def point_of(size: int, result: LoadResult, targets: Mapping[str, float]) -> KneePoint:
    """A point of the curve, simulated or measured."""
    return KneePoint(
        size,
        result.output_rate,
        result.percentile("ttft", 90),
        result.percentile("tpot", 90),
        tuple(missed(result, targets)),
    )


def find_knee(points: list[KneePoint]) -> tuple[KneePoint | None, str]:
    """The smallest size beyond which none that keeps the targets brings LEAST_RISE more, and why; None when the targets
    break at every size.
    """
    good = [point for point in points if not point.missed]
    if not good:
        return None, f"even at {points[0].max_num_seqs}: {', '.join(points[0].missed)}"
    best = max(point.output_rate for point in good)
    knee = next(point for point in good if point.output_rate * (1 + LEAST_RISE) >= best)
    beyond = [point for point in points if point.max_num_seqs > knee.max_num_seqs]
    if not beyond:
        return knee, "throughput rises up to the most that memory was planned for"
    after = beyond[0]
    if after.missed:
        return knee, f"at {after.max_num_seqs} {', '.join(after.missed)}"
    return knee, f"{after.max_num_seqs} would bring {after.output_rate / max(knee.output_rate, 1e-9) - 1:+.0%} tokens/s"


def judge_knee(points: list[KneePoint], current: int) -> Verdict:
    """The verdict on max_num_seqs."""
    knee, why = find_knee(points)
    if knee is None:
        return Verdict("max_num_seqs", "targets cannot be met", reason=why)
    now = next((point for point in points if point.max_num_seqs == current), points[-1])
    change = knee.output_rate / now.output_rate - 1 if now.output_rate else None
    if knee.max_num_seqs == current:
        return Verdict("max_num_seqs", SAME, f"--max-num-seqs {current}", 0.0, reason=f"the default is right: {why}")
    tpot = knee.tpot_p90_ms / now.tpot_p90_ms - 1 if now.tpot_p90_ms else None
    reason = f"knee at {knee.max_num_seqs} ({knee.output_rate:.0f} tokens/s, TPOT p90 {knee.tpot_p90_ms:.1f} ms): {why}"
    return Verdict(
        "max_num_seqs",
        f"set to {knee.max_num_seqs}",
        f"--max-num-seqs {knee.max_num_seqs}",
        change,
        tpot_change=tpot,
        costs="more waiting when more users come at once",
        reason=reason,
    )


def judge_batched_tokens(
    evaluator: Evaluator, base: Variant, concurrency: int, targets: Mapping[str, float]
) -> Verdict:
    """The verdict on max_num_batched_tokens: another size only when it is clearly faster or mends a target."""
    now = evaluator.run(base, concurrency, sample=0)
    current = base.settings.max_num_batched_tokens
    is_missing = bool(missed(now, targets))
    best, best_rate, best_tpot = current, now.output_rate, now.percentile("tpot", 90)
    for size in BATCHED_TOKENS:
        if size == current or size < base.settings.max_num_seqs:
            continue
        variant = replace(base, settings=replace(base.settings, max_num_batched_tokens=size))
        result = evaluator.run(variant, concurrency, sample=0)
        mends = is_missing and not missed(result, targets) and result.output_rate > 0.95 * now.output_rate
        if mends or (result.output_rate > best_rate * (1 + LEAST_RISE) and not missed(result, targets)):
            best, best_rate, best_tpot = size, result.output_rate, result.percentile("tpot", 90)
            is_missing = is_missing and not mends
    name, setting = "max_num_batched_tokens", f"--max-num-batched-tokens {best}"
    if best == current:
        return Verdict(name, SAME, setting, 0.0, reason=f"no other size is {LEAST_RISE:.0%} faster within the targets")
    tpot_change = best_tpot / max(now.percentile("tpot", 90), 1e-9) - 1
    reason = f"{best_rate:.0f} tokens/s against {now.output_rate:.0f} with {current}"
    return Verdict(
        name, f"set to {best}", setting, best_rate / now.output_rate - 1, tpot_change=tpot_change,
        costs="longer gaps between tokens while prompts are fed" if best > current else "slower prompts", reason=reason,
    )  # fmt: skip
