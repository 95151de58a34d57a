"""Settles by measurement what the advice leaves open: the knee, and which drafter; then says what to write down.

Nothing is relaunched: every setting tried here can change on one loaded model. Knows engines by a protocol only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import yaml

from threefold.advise.advise import Advice
from threefold.advise.knee import KneePoint, find_knee
from threefold.advise.knee_measured import Sweep, around, sweep
from threefold.advise.levers import Variant
from threefold.advise.verdict import LEAST_GAIN, UNKNOWN, Verdict, users_said
from threefold.advise.verify import LIVE, Verifier, contrast_of
from threefold.advise.verify_cell import BIG, Cell
from threefold.flags.targets import SERVED


@dataclass(slots=True)
class Tuned:
    """What was measured, and what came of it."""

    points: list[KneePoint]
    """Of the knee, by size."""
    cells: list[Cell]
    settings: dict[str, Any] = field(default_factory=dict)
    """Flags of `threefold serve` by name."""
    reasons: list[str] = field(default_factory=list)
    sweep: Sweep | None = None
    """Where it was asked for."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        cells = [cell.to_dict() for cell in self.cells]
        return {**asdict(self), "cells": cells}

    def yaml(self, header: Sequence[str]) -> str:
        """A file that `serve --config` takes; reasons as comments."""
        comments = "".join(f"# {line}\n" for line in (*header, *self.reasons))
        return comments + (yaml.safe_dump(self.settings, sort_keys=False) if self.settings else "{}\n")


def tune(
    verifier: Verifier,
    advice: Advice,
    base: Variant,
    variants: Sequence[Variant],
    *,
    rounds: int,
    is_exhaustive: bool = False,
    say: Callable[[str], None],
) -> Tuned:
    """Measure the knee around the one that was predicted, and the levers that the advice does not rule out.

    Args:
        verifier: measures.
        advice: what was predicted.
        base: the engine as it is.
        variants: the levers.
        rounds: measurements of each lever, and of each size of a sweep.
        is_exhaustive: measure every size too, on its own, and say how far the knee was from the one found so.
        say: told of every measurement.

    Raises:
        ConfigError: no request of the load could be answered.
    """
    predicted = find_knee(advice.knee)[0]
    first = predicted or advice.knee[0]
    tuned = Tuned(around(first.max_num_seqs, verifier, base, advice.targets, say), [])
    _settle_knee(tuned, base.settings.max_num_seqs)
    _settle_targets(tuned, advice.targets)
    if is_exhaustive:
        points = sweep(verifier, base, advice.targets, rounds, say)
        tuned.sweep = Sweep.of(points, find_knee(tuned.points)[0], predicted)
        tuned.reasons += tuned.sweep.lines()
    verdicts = {one.lever: one for one in advice.verdicts}
    wanted = [
        one
        for one in variants
        if one.name in LIVE and _is_open(verdicts[one.name]) and (one.drafter is None or verifier.has_text)
    ]
    users = min(advice.concurrency, base.settings.max_num_seqs, verifier.most_users)
    tuned.cells = verifier.cells([contrast_of(base, one) for one in wanted], users, rounds) if wanted else []
    for cell in tuned.cells:
        say(f"{cell.lever}: predicted {cell.predicted:+.0%}, measured {cell.measured:+.0%}")
    _settle_levers(tuned)
    return tuned


def _is_open(verdict: Verdict) -> bool:
    """True when it may pay, or may hurt."""
    if verdict.verdict == UNKNOWN or verdict.low is None or verdict.high is None:
        return False
    return verdict.high >= LEAST_GAIN or verdict.low <= -LEAST_GAIN


def _settle_knee(tuned: Tuned, current: int) -> None:
    knee, why = find_knee(tuned.points)
    if knee is None:
        tuned.reasons.append(f"the targets cannot be met, {why}; max_num_seqs is left at {current}")
        return
    tuned.reasons.append(f"max_num_seqs {knee.max_num_seqs}: {knee.output_rate:.0f} tokens/s measured; {why}")
    if knee.max_num_seqs != current:
        tuned.settings["max-num-seqs"] = knee.max_num_seqs


def _settle_targets(tuned: Tuned, targets: Mapping[str, float]) -> None:
    """The server holds what was asked for, unless that was seen to be out of reach."""
    held = {name: limit for name, limit in targets.items() if name in SERVED}
    if held and find_knee(tuned.points)[0] is not None:
        tuned.settings["slo"] = ",".join(f"{name}:{limit:g}" for name, limit in held.items())
        tuned.reasons.append("slo: the server holds these targets, and refuses with 503 who would miss them")


def _settle_levers(tuned: Tuned) -> None:
    """The best drafter that was seen to pay; prefix caching off only where it hurts and was not expected to help."""
    drafters = [cell for cell in tuned.cells if cell.lever != "prefix caching"]
    best = max(drafters, key=lambda cell: cell.measured, default=None)
    if best is not None and best.measured - (best.spread or 0.0) >= LEAST_GAIN:
        tuned.settings["spec-method"] = best.lever
        tuned.reasons.append(f"{best.lever}: {best.measured:+.0%} tokens/s measured with {users_said(best.users)}")
    elif best is not None:
        tuned.reasons.append(
            f"no drafter was seen to pay with {users_said(best.users)}; adaptive speculation costs nothing"
        )
    for cell in tuned.cells:
        is_hurting = cell.measured + (cell.spread or 0.0) <= -BIG and cell.predicted < LEAST_GAIN
        if cell.lever == "prefix caching" and is_hurting:
            tuned.settings["enable-prefix-caching"] = False
            tuned.reasons.append(f"prefix caching: {cell.measured:+.0%} tokens/s measured")
