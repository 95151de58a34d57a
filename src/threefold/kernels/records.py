"""The order in which packed weights lie, and the way into it and out of it.

    weight = scale · (number - zero) + minimum        32 inputs of an output share a scale, and a minimum if any

    records     [out / 32, in / 32] of
                scales     [32 outputs] float16
                minima     [32 outputs] float16, where the form has them
                numbers    [2, 8, 16 outputs, 4 inputs] of 8 bits, or of 4: two of the eight share their bytes

Knows nothing about products or files.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from threefold.kernels.pages import WORTH_BYTES, zeros_in_large_pages

RECORD_OUTPUTS, RECORD_INPUTS = 32, 32
FACTOR_BYTES = 2
FOUR_BITS = 4
ALIGN_BYTES = 64

_GROUPS, _LANES = 2, 16
_WORDS, _WORD_INPUTS = 8, 4


class Form(NamedTuple):
    """What numbers mean, and how many bits they have."""

    bits: int
    """4 or 8; numbers have no sign."""
    zero: int
    """The number that stands for 0."""
    has_minimum: bool
    """Whether a minimum is added; zero is 0 then."""

    @property
    def head_bytes(self) -> int:
        """Scales of a record, and minima if any."""
        return RECORD_OUTPUTS * FACTOR_BYTES * (2 if self.has_minimum else 1)

    @property
    def record_bytes(self) -> int:
        """One record."""
        return self.head_bytes + RECORD_OUTPUTS * RECORD_INPUTS * self.bits // 8


def fits_records(num_outputs: int, num_inputs: int) -> bool:
    """Whether a weight is whole records."""
    return num_outputs % RECORD_OUTPUTS == 0 and num_inputs % RECORD_INPUTS == 0


def _memory(num_bytes: int) -> torch.Tensor:
    if num_bytes >= WORTH_BYTES:
        return zeros_in_large_pages(num_bytes)
    memory = torch.empty(num_bytes + ALIGN_BYTES, dtype=torch.uint8)
    start = -memory.data_ptr() % ALIGN_BYTES
    return memory[start : start + num_bytes]


class PackedWeight:
    """A weight in records.

    Args:
        form: of its numbers.
        numbers: uint8 [out, in].
        scales: float16 [out, in / 32].
        minima: the same, where the form has them.
    """

    def __init__(self, form: Form, numbers: torch.Tensor, scales: torch.Tensor, minima: torch.Tensor | None) -> None:
        self.form = form
        self.num_outputs, self.num_inputs = numbers.shape
        outer = (self.num_outputs // RECORD_OUTPUTS, self.num_inputs // RECORD_INPUTS)
        self.records = _memory(outer[0] * outer[1] * form.record_bytes).view(*outer, -1)
        for row, factors in enumerate((scales, minima)[: 2 if form.has_minimum else 1]):
            assert factors is not None, "a form with minima has them"
            self._factors(row).copy_(factors.view(outer[0], RECORD_OUTPUTS, outer[1]).transpose(1, 2))
        lanes = numbers.view(outer[0], _GROUPS, _LANES, outer[1], _WORDS, _WORD_INPUTS).permute(0, 3, 1, 4, 2, 5)
        if form.bits == FOUR_BITS:
            pairs = lanes.reshape(*lanes.shape[:3], _WORDS // 2, 2, _LANES, _WORD_INPUTS)
            lanes = pairs.select(4, 0) | (pairs.select(4, 1) << FOUR_BITS)
        self._numbers().copy_(lanes)

    def _factors(self, row: int) -> torch.Tensor:
        """Scales or minima, [out / 32, in / 32, 32], a view."""
        size = RECORD_OUTPUTS * FACTOR_BYTES
        return self.records[..., row * size : (row + 1) * size].view(torch.float16)

    def _numbers(self) -> torch.Tensor:
        """[out / 32, in / 32, 2, 8 words or 4 pairs of them, 16, 4], a view."""
        words = _WORDS * self.form.bits // 8
        numbers = self.records[..., self.form.head_bytes :]
        return numbers.view(*numbers.shape[:2], _GROUPS, words, _LANES, _WORD_INPUTS)

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """The weights of some outputs, [n] int64 -> [n, in] float32."""
        block, place = outputs // RECORD_OUTPUTS, outputs % RECORD_OUTPUTS
        every = torch.arange(self.num_inputs // RECORD_INPUTS)
        index = (block[:, None], every)
        numbers = self._numbers()[(*index, (place // _LANES)[:, None], slice(None), (place % _LANES)[:, None])]
        if self.form.bits == FOUR_BITS:
            numbers = torch.stack((numbers & 0xF, numbers >> FOUR_BITS), dim=3)
        values = numbers.reshape(len(outputs), len(every), RECORD_INPUTS).float() - self.form.zero
        values *= self._factors(0)[(*index, place[:, None])].float()[..., None]
        if self.form.has_minimum:
            values += self._factors(1)[(*index, place[:, None])].float()[..., None]
        return values.view(len(outputs), -1)
