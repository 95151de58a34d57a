"""What speculation is earning now, against the same work without drafts.

Knows nothing about requests. Every step with drafts is set against itself without them: what steps of its size took
lately (plain.py), and where none is known, the cost curve's estimate. Prompts are owed by the tokens that follow them,
so each committed token carries the same share of prompt time either way:

    ms a token, with drafts     (decode_ms + prompt_ms) / committed
    ms a token, without         plain_decode_ms / plain_committed + prompt_ms / committed

What each drafter earns is the same with its own accepted drafts alone, and of the time that drafts cost its share by
the number verified.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from threefold.draft.decay import take_in

MEMORY_STEPS = 300.0
"""Steps over which the ratio is averaged."""
MEMORY_READINGS = 64.0
"""Steps of a kind, with drafts or without, over which the curve's error is averaged."""


class StepGain(NamedTuple):
    """One step as it was, and what it would have been without drafts."""

    committed: float
    """Tokens."""
    decode_ms: float
    """Time of the step, drafting included and its prompts' share left out."""
    prompt_ms: float
    """Time of the step's prompts."""
    plain_committed: float
    """Tokens without drafts."""
    plain_decode_ms: float
    """Decode time without drafts."""

    @property
    def saved_ms(self) -> float:
        """Time that the committed tokens would have taken without drafts, less what they took."""
        if self.plain_committed <= 0.0:
            return 0.0
        return self.committed * self.plain_decode_ms / self.plain_committed - self.decode_ms


class Verified(NamedTuple):
    """What became of one drafter's drafts."""

    num_drafted: int
    num_accepted: int


class Gain:
    """Tokens a millisecond with drafts over without, exponentially decayed."""

    def __init__(self) -> None:
        self._sums = StepGain(0.0, 0.0, 0.0, 0.0, 0.0)
        self._off = [_Mean(), _Mean()]
        self._drafters: dict[str, tuple[float, float]] = {}  # accepted drafts, and what they cost in ms

    def observe(self, step: StepGain, verified: Mapping[str, Verified], num_steps: int = 1) -> None:
        """So many steps like this one are over; `verified` says what each did with each drafter's drafts."""
        keep = (1.0 - 1.0 / MEMORY_STEPS) ** num_steps
        weight = (1.0 - keep) * MEMORY_STEPS
        committed, decode_ms, prompt_ms, plain_committed, plain_decode_ms = self._sums
        self._sums = StepGain(
            committed * keep + step.committed * weight,
            decode_ms * keep + step.decode_ms * weight,
            prompt_ms * keep + step.prompt_ms * weight,
            plain_committed * keep + step.plain_committed * weight,
            plain_decode_ms * keep + step.plain_decode_ms * weight,
        )
        drafters = self._drafters
        for drafter, (accepted, cost_ms) in drafters.items():
            drafters[drafter] = accepted * keep, cost_ms * keep
        if verified:
            extra_ms = (step.decode_ms - step.plain_decode_ms) * weight
            num_drafted = sum([drafts.num_drafted for drafts in verified.values()])
            for drafter, new in verified.items():
                accepted, cost_ms = drafters.get(drafter, (0.0, 0.0))
                share = new.num_drafted / num_drafted if num_drafted else 0.0
                drafters[drafter] = accepted + new.num_accepted * weight, cost_ms + extra_ms * share

    def observe_prediction(
        self, has_drafts: bool, predicted_ms: float, spent_ms: float, num_steps: int = 1, scatter: float = 0.0
    ) -> None:
        """How well the curve predicted the forward pass of steps that had drafts or had none.

        Of several steps spent_ms is the mean, and scatter their variance about it, relative.
        """
        self._off[has_drafts].add(math.log(spent_ms / predicted_ms), num_steps, scatter)

    @property
    def ratio(self) -> float:
        """1.0 = no difference, or nothing known."""
        return self._ratio(self._sums.committed, self._sums.decode_ms)

    @property
    def by_drafter(self) -> dict[str, float]:
        """The same for each drafter alone."""
        plain = self._sums
        return {
            drafter: self._ratio(plain.plain_committed + accepted, max(plain.plain_decode_ms + cost_ms, 0.0))
            for drafter, (accepted, cost_ms) in self._drafters.items()
        }

    def _ratio(self, committed: float, decode_ms: float) -> float:
        _, _, prompt_ms, plain_committed, plain_decode_ms = self._sums
        if min(committed, decode_ms, plain_committed) <= 0.0:
            return 1.0
        token_ms = (decode_ms + prompt_ms) / committed
        return (plain_decode_ms / plain_committed + prompt_ms / committed) / token_ms

    @property
    def error(self) -> float:
        """Standard error of the ratio: the curve may be off differently for steps with and without drafts."""
        plain, drafted = self._off
        bias = drafted.mean - plain.mean
        return self.ratio * math.sqrt(bias * bias + plain.variance_of_mean + drafted.variance_of_mean)


class _Mean:
    """Decayed mean and variance."""

    def __init__(self) -> None:
        self._weight = 0.0
        self.mean = 0.0
        self._variance = 0.0

    def add(self, value: float, num_readings: int, scatter: float) -> None:
        """So many readings, of which this is the mean, and scatter their variance."""
        share, self._weight = take_in(self._weight, num_readings, MEMORY_READINGS)
        off = value - self.mean
        self.mean += off * share
        self._variance += (off * (value - self.mean) + scatter - self._variance) * share

    @property
    def variance_of_mean(self) -> float:
        return self._variance / self._weight if self._weight else 0.0
