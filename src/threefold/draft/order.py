"""The order in which numbers fall, found without comparing them.

Knows nothing about what they are. Drafts of 64 rows are some four hundred, and comparing them goes wrong half the time
in the processor's guess at the outcome: a radix sort (Hollerith, 1889; Cormen et al., section 8.3) takes a tenth of the
time. Compiled by numba, as acceptance.py is and for the same reason.
"""
# numba brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-def"

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

FEW = 64
"""With fewer numbers comparing them is faster."""
_DIGIT_BITS = 11
_NUM_DIGITS = 1 << _DIGIT_BITS
_DROPPED_BITS = np.uint32(10)
"""Of 32 bits; a sign, an exponent and 13 bits are left: numbers that differ by less than 1 in 8,000 are equal."""
_SIGN_BIT = np.uint32(31)
_ALL_BUT_SIGN = np.uint32(0x7FFFFFFF)


@numba.njit(cache=True, nogil=True)
def falling(values: FloatArray) -> IntArray:
    """Where the largest number stands, the next, and so on; of many numbers, equal ones stay as they stand."""
    if len(values) < FEW:
        return np.argsort(-values)
    keys = _keys(values)
    order, sorted_order = np.arange(len(values)), np.empty(len(values), dtype=np.int64)
    for digit in range(2):
        shift = np.uint32(digit * _DIGIT_BITS)
        starts = np.zeros(_NUM_DIGITS + 1, dtype=np.int64)
        for key in keys:
            starts[((key >> shift) & np.uint32(_NUM_DIGITS - 1)) + 1] += 1
        for place in range(_NUM_DIGITS):
            starts[place + 1] += starts[place]
        for i in order:
            place = (keys[i] >> shift) & np.uint32(_NUM_DIGITS - 1)
            sorted_order[starts[place]] = i
            starts[place] += 1
        order, sorted_order = sorted_order, order
    return order


@numba.njit(cache=True, nogil=True)
def _keys(values: FloatArray):
    """Whole numbers of two digits that rise where values fall, from the bits of their floats (IEEE 754)."""
    bits = values.astype(np.float32).view(np.uint32)
    for i in range(len(bits)):
        is_negative = bits[i] >> _SIGN_BIT
        bits[i] = (bits[i] if is_negative else bits[i] ^ _ALL_BUT_SIGN) >> _DROPPED_BITS
    return bits
