"""Predicted against measured: the levers that can change live, tried on the loaded engine with the same requests.

Each cell is a lever at a number of users. The engine runs with and without the lever, in turn, several times; the
simulator was asked the same question. What comes of it says how far the advice can be trusted here.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Protocol

from threefold.advise.drive import Ask
from threefold.advise.evaluate import Evaluator
from threefold.advise.levers import Variant
from threefold.advise.result import LoadResult
from threefold.advise.trace import TraceRequest
from threefold.advise.verify_cell import Cell

WAVES = 3
"""Requests a user …"""
LEAST_REQUESTS = 12
"""… and at least so many."""
LIVE = ("prefix caching", "ngram", "suffix")
"""Levers that need no other weights."""


class Measure(Protocol):
    """Runs a variant for real; engine_measure.py has the one that does."""

    def run(self, variant: Variant, asks: Sequence[Ask], users: int) -> LoadResult:
        """Answer the requests with so many users, on a fresh engine; the controller alone lives on."""


class Verifier:
    """Measures what an evaluator predicts.

    Args:
        measure: runs variants.
        trace: the load, with prompts and answers as token ids.
        evaluator: of the same trace.
    """

    def __init__(self, measure: Measure, trace: Sequence[TraceRequest], evaluator: Evaluator) -> None:
        self._measure = measure
        self._evaluator = evaluator
        self._asks = [_ask(one) for one in trace]

    def measured(self, variant: Variant, users: int, num: int) -> LoadResult:
        """One variant on so many of the load's requests."""
        return self._measure.run(variant, [self._asks[place] for place in self._places(num)], users)

    def _places(self, num: int) -> list[int]:
        return self._evaluator.places(0, num)[: len(self._asks)]

    def cell(self, base: Variant, variant: Variant, users: int, rounds: int) -> Cell:
        """Predict and measure one cell."""
        places = self._places(max(WAVES * users, LEAST_REQUESTS))
        predicted_base, predicted_moved = (self._evaluator.run(one, users, 0, places) for one in (base, variant))
        asks = [self._asks[place] for place in places]
        self._measure.run(variant, asks[:users], users)  # warm, and the controller's first look
        measured, base_rates = [], []
        for turn in range(rounds):
            order = (base, variant) if turn % 2 == 0 else (variant, base)
            rates = {one.name: self._measure.run(one, asks, users).output_rate for one in order}
            base_rates.append(rates[base.name])
            measured.append(rates[variant.name] / rates[base.name] - 1)
        predicted = predicted_moved.output_rate / predicted_base.output_rate - 1
        if not variant.settings.has_prefix_cache:
            predicted, measured = _turned(predicted), [_turned(one) for one in measured]
        return Cell(
            variant.name,
            users,
            len(asks),
            predicted,
            statistics.median(measured),
            (max(measured) - min(measured)) / 2,
            predicted_base.output_rate,
            statistics.median(base_rates),
        )


def verify(
    verifier: Verifier,
    base: Variant,
    variants: Sequence[Variant],
    users: Sequence[int],
    *,
    rounds: int,
    say: Callable[[str], None],
) -> list[Cell]:
    """All cells; Ctrl-C keeps what was measured."""
    cells: list[Cell] = []
    chosen = [variant for variant in variants if variant.name in LIVE]
    try:
        for count in users:
            for variant in chosen:
                cells.append(verifier.cell(base, variant, count, rounds))
                last = cells[-1]
                say(f"{last.lever}, {count} users: predicted {last.predicted:+.0%}, measured {last.measured:+.0%}")
    except KeyboardInterrupt:
        say("interrupted; what was measured is kept")
    return cells


def _turned(change: float) -> float:
    """Of taking a lever away, to that of adding it."""
    return 1 / max(1 + change, 1e-6) - 1


def _ask(one: TraceRequest) -> Ask:
    prompt = one.text.prompt if one.text is not None else []
    return Ask(prompt, one.num_output_tokens, one.temperature or 0.0)
