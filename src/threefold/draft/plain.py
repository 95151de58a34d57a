"""What steps without drafts took lately, as measured: what drafts must beat.

A cost curve predicts, and learns from every step; where steps with drafts take longer than it can express, it comes to
believe that steps without would take longer too, and drafts seem to earn what they lose. So the other side of the
account is kept from real steps without drafts alone, and the curve only moves a reading to a batch a little different.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from threefold.cost import CostCurve, StepShape

SIZES_A_DOUBLING = 4
"""Sizes of the batch that are told apart."""
MEMORY_READINGS = 8.0
"""Readings over which a size's time is averaged."""


@dataclass(slots=True)
class _Reading:
    rows: float
    kv_tokens: float
    ms: float
    num_readings: float = 1.0

    def add(self, shape: StepShape, ms: float) -> None:
        self.num_readings = min(self.num_readings + 1.0, MEMORY_READINGS)
        share = 1.0 / self.num_readings
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

    def observe(self, shape: StepShape, ms: float) -> None:
        """A step without drafts and without prompts took this long."""
        size = _size(shape.num_rows)
        reading = self._readings.get(size)
        if reading is None:
            self._readings[size] = _Reading(shape.num_rows, shape.kv_tokens, ms)
        else:
            reading.add(shape, ms)

    def expected_ms(self, shape: StepShape, cost: CostCurve) -> float:
        """What such a step of this shape would take; the curve's word where none like it was measured."""
        size, own_ms = _size(shape.num_rows), cost.forward_ms(shape)
        for near in (size, size - 1, size + 1):
            reading = self._readings.get(near)
            if reading is not None:
                return reading.ms * own_ms / cost.forward_ms(reading.shape)
        return own_ms


def _size(num_rows: int) -> int:
    return round(SIZES_A_DOUBLING * math.log2(num_rows))
