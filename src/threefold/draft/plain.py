"""What steps without drafts took lately, as measured: what drafts must beat.

A cost curve predicts, and learns from every step; where steps with drafts take longer than it can express, it comes to
believe that steps without would take longer too, and drafts seem to earn what they lose. So the other side of the
account is kept from real steps without drafts alone, and the curve only moves a reading to a batch a little different.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from threefold.cost import CostCurve, StepShape
from threefold.draft.decay import take_in

SIZES_A_DOUBLING = 4
"""Sizes of the batch that are told apart."""
MEMORY_READINGS = 8.0
"""Readings over which a size's time is averaged."""


@dataclass(slots=True)
class _Reading:
    rows: float
    kv_tokens: float
    ms: float
    num_readings: float

    def add(self, shape: StepShape, ms: float, num_steps: int) -> None:
        share, self.num_readings = take_in(self.num_readings, num_steps, MEMORY_READINGS)
        self.rows += (shape.num_rows - self.rows) * share
        self.kv_tokens += (shape.kv_tokens - self.kv_tokens) * share
        self.ms += (ms - self.ms) * share

    @property
    def shape(self) -> StepShape:
        rows = round(self.rows)
        return StepShape(rows, rows, round(self.kv_tokens))


class PlainTimes:
    """Steps in which every row was fed one token, by the number of rows."""

    def __init__(self) -> None:
        self._readings: dict[int, _Reading] = {}  # by size

    def observe(self, shape: StepShape, ms: float, num_steps: int = 1) -> None:
        """So many steps without drafts and without prompts took this long on average."""
        size = _size(shape.num_rows)
        reading = self._readings.get(size)
        if reading is None:
            self._readings[size] = _Reading(shape.num_rows, shape.kv_tokens, ms, min(num_steps, MEMORY_READINGS))
        else:
            reading.add(shape, ms, num_steps)

    def knows(self, num_rows: int) -> bool:
        """Whether a step of about so many rows was measured."""
        return self._near(num_rows) is not None

    def expected_ms(self, shape: StepShape, cost: CostCurve) -> float:
        """What such a step of this shape would take.

        Where none like it was measured the curve has the word, but none takes longer than a larger one did.
        """
        own_ms, reading = cost.forward_ms(shape), self._near(shape.num_rows)
        if reading is not None:
            return reading.ms * own_ms / cost.forward_ms(reading.shape)
        larger = [
            reading.ms
            for reading in self._readings.values()
            if reading.rows >= shape.num_rows and reading.kv_tokens >= shape.kv_tokens
        ]
        return min([own_ms, *larger])

    def _near(self, num_rows: int) -> _Reading | None:
        size, readings = _size(num_rows), self._readings
        return readings.get(size) or readings.get(size - 1) or readings.get(size + 1)


def _size(num_rows: int) -> int:
    return round(SIZES_A_DOUBLING * math.log2(num_rows))
