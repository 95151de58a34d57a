"""Blocks of a GGUF file taken apart for layers/gguf.py: numbers without a sign, scales, minima. (Format: ggml.)

    Q4_0  scale, 16 bytes            Q5_0  scale, 32 fifth bits, 16 bytes              Q8_0  scale, 32 int8
    Q4_1  scale, minimum, 16 bytes   Q5_1  scale, minimum, 32 fifth bits, 16 bytes

Scales and minima are float16; a byte has the first 16 numbers' lower bits in its lower half. Knows nothing about files.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from threefold.layers.gguf import PACKINGS

BLOCK_INPUTS = 32
_HALF = 2  # bytes of a float16
_FIFTH_BYTES = 4


class Parts(NamedTuple):
    """Rows of a weight."""

    numbers: np.ndarray  # [rows, in] uint8
    scales: np.ndarray  # [rows, in / 32] float16
    minima: np.ndarray | None  # the same

    def as_packed_in(self, packing: str, stored: str) -> Parts:
        """The same weights for a packing that takes all numbers of the one that they were stored in."""
        form, own = PACKINGS[packing], PACKINGS[stored]
        if form.has_minimum and self.minima is None:
            return self._replace(minima=(self.scales * np.float16(-own.zero)).astype(np.float16))
        return self


def take_apart(raw: np.ndarray, packing: str) -> Parts:
    """[rows, bytes a row] uint8 to the parts of its blocks."""
    form = PACKINGS[packing]
    num_blocks = raw.shape[1] // block_bytes(packing)
    blocks = raw.reshape(len(raw), num_blocks, -1)
    num_head = _HALF * (2 if form.has_minimum else 1)
    head = np.ascontiguousarray(blocks[..., :num_head]).view(np.float16)
    rest = blocks[..., num_head:]
    if packing == "Q8_0":
        numbers = rest ^ np.uint8(form.zero)  # of a sign in two's complement to steps from -128
    else:
        numbers = _halves(rest[..., -BLOCK_INPUTS // 2 :])
        if packing in ("Q5_0", "Q5_1"):
            fifth = np.unpackbits(rest[..., :_FIFTH_BYTES], axis=2, bitorder="little")
            numbers |= fifth << np.uint8(4)
    minima = np.ascontiguousarray(head[..., 1]) if form.has_minimum else None
    return Parts(numbers.reshape(len(raw), -1), np.ascontiguousarray(head[..., 0]), minima)


def block_bytes(packing: str) -> int:
    """Of 32 weights in the file."""
    factors = _HALF * (2 if PACKINGS[packing].has_minimum else 1)
    return factors + {"Q4": 16, "Q5": 16 + _FIFTH_BYTES, "Q8": 32}[packing[:2]]


def _halves(packed: np.ndarray) -> np.ndarray:
    return np.concatenate((packed & np.uint8(0xF), packed >> np.uint8(4)), axis=2)
