"""The CPU body of draw.py: exact thresholds by a histogram over float bits, no sort over the vocabulary.

Knows nothing about requests. Compiled by numba on first use and kept on disk.
"""
# numba brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-any-return"

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Exponents = npt.NDArray[np.int32]

_BLOCK = 256
"""Tokens handled at once; small enough that what is made of them stays in the first cache."""
_KEY_SHIFT = 19
"""Leaves sign, exponent and four bits of mantissa of a float32: for [0, 1] keys below 2048, ordered as the values."""
_NUM_KEYS = 2048

_LOG2_E = 1.4426950408889634
_LN_2 = np.float32(0.6931471805599453)
_LEAST_POWER, _SMALLEST = np.float32(-126.0), np.float32(1.2e-38)
"""Below 2^-126 a weight is zero."""
_C1, _C2, _C3, _C4, _C5, _C6, _C7 = (np.float32(1 / math.factorial(n)) for n in range(1, 8))

# Sums may be regrouped so that the compiler vectorises them; no value here is NaN.
_REGROUP = {"reassoc", "nsz", "contract", "nnan"}


class Filters(NamedTuple):
    """What narrows each row's choice; arrays are [num_rows]."""

    top_k: Ints
    """0 = all."""
    top_p: Floats
    """1 = all."""
    min_p: Floats
    """0 = all."""


class _Row(NamedTuple):
    """One row's parameters."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


@numba.njit(cache=True, nogil=True)
def draw_rows(logits: Floats, temperature: Floats, filters: Filters, uniforms: Doubles) -> Ints:
    """The contract of draw.draw, on numpy arrays: [num_rows, vocab] logits to [num_rows] token ids."""
    top_k, top_p, min_p = filters
    drawn = np.empty(len(logits), dtype=np.int64)
    for row in range(len(logits)):
        scaled = _Row(np.float64(temperature[row]), top_k[row], np.float64(top_p[row]), np.float64(min_p[row]))
        drawn[row] = _draw_row(logits[row], scaled, uniforms[row])
    return drawn


@numba.njit(cache=True, nogil=True)
def _draw_row(logits: Floats, row: _Row, uniform: float) -> int:
    largest, bound = _bounds(logits, row)
    if bound == -np.inf:
        weights = np.empty(len(logits), dtype=np.float32)
        _weigh(logits, largest, row.temperature, weights)
        return _inverse_cdf(weights, _floor(weights, row.top_k, row.top_p), uniform)
    token_ids = _reaching(logits, bound)
    weights = np.empty(len(token_ids), dtype=np.float32)
    for place in range(len(token_ids)):
        weights[place] = np.exp((np.float64(logits[token_ids[place]]) - largest) / row.temperature)
    return token_ids[_inverse_cdf(weights, _floor(weights, row.top_k, row.top_p), uniform)]


@numba.njit(cache=True, nogil=True)
def _bounds(logits: Floats, row: _Row) -> tuple[np.float32, np.float32]:
    """(the largest logit, a logit that no token kept by min_p and top_k falls below; -inf where that is too dear)."""
    num_blocks = (len(logits) + _BLOCK - 1) // _BLOCK
    peaks = np.empty(num_blocks, dtype=np.float32)
    for block in range(num_blocks):
        peaks[block] = _largest(logits[block * _BLOCK : (block + 1) * _BLOCK])
    largest = np.max(peaks)
    bound = np.float32(-np.inf)
    if row.min_p > 0:
        bound = np.float32(largest + row.temperature * np.log(row.min_p))
    if 0 < row.top_k <= num_blocks:
        # So many blocks hold a logit that large, so the k-th largest of all is no smaller.
        bound = max(bound, np.sort(peaks)[num_blocks - row.top_k])
    return largest, bound


@numba.njit(cache=True, nogil=True)
def _reaching(logits: Floats, bound: np.float32) -> Ints:
    """Ids of the tokens whose logits are not below the bound."""
    token_ids = np.empty(len(logits), dtype=np.int64)
    num_found = 0
    for token_id in range(len(logits)):
        if logits[token_id] >= bound:
            token_ids[num_found] = token_id
            num_found += 1
    return token_ids[:num_found]


@numba.njit(cache=True, nogil=True)
def _floor(weights: Floats, top_k: int, top_p: float) -> np.float32:
    """The least weight that top_k and top_p keep."""
    floor = np.float32(0.0)
    if 0 < top_k < len(weights):
        floor = _kth_largest(weights, top_k)
    if top_p < 1:
        floor = max(floor, _nucleus_floor(weights, top_p, floor))
    return floor


@numba.njit(cache=True, nogil=True)
def _weigh(logits: Floats, largest: np.float32, temperature: float, weights: Floats) -> None:
    """Write exp((logits - largest) / temperature), block by block."""
    scale = np.float32(_LOG2_E / temperature)
    exponents = np.empty(_BLOCK, dtype=np.int32)
    for start in range(0, len(logits), _BLOCK):
        end = min(start + _BLOCK, len(logits))
        _weigh_block(logits[start:end], largest, scale, weights[start:end], exponents)


@numba.njit(cache=True, nogil=True, fastmath=_REGROUP)
def _weigh_block(logits: Floats, largest: np.float32, scale: np.float32, weights: Floats, exponents: Exponents) -> None:
    """2^((logits - largest) * scale) as 2^n * e^r with |r| <= ln 2 / 2, in loops that the compiler vectorises."""
    powers = exponents.view(np.float32)
    for index in range(len(logits)):
        power = (logits[index] - largest) * scale
        power = power if power > _LEAST_POWER else _LEAST_POWER
        whole = np.floor(power + np.float32(0.5))
        exponents[index] = np.int32(whole)
        weights[index] = _exp_series((power - whole) * _LN_2)
    for index in range(len(logits)):
        exponents[index] = (exponents[index] + 127) << 23  # the bits of 2^n
    for index in range(len(logits)):
        weights[index] = weights[index] * powers[index] if powers[index] > _SMALLEST else np.float32(0.0)


@numba.njit(cache=True, nogil=True, fastmath=_REGROUP, inline="always")
def _exp_series(r: np.float32) -> np.float32:
    """e^r for |r| <= ln 2 / 2 by Taylor's series up to r^7, whose remainder is below 1e-8."""
    tail = _C4 + r * (_C5 + r * (_C6 + r * _C7))
    return _C1 + r * (_C1 + r * (_C2 + r * (_C3 + r * tail)))


@numba.njit(cache=True, nogil=True, fastmath=_REGROUP)
def _largest(values: Floats) -> np.float32:
    best = np.float32(-np.inf)
    for index in range(len(values)):
        best = max(best, values[index])
    return best


@numba.njit(cache=True, nogil=True, fastmath=_REGROUP)
def _mass(values: Floats, floor: np.float32) -> float:
    """Sum of the values that reach the floor."""
    total = 0.0
    for index in range(len(values)):
        total += float(values[index]) if values[index] >= floor else 0.0
    return total


@numba.njit(cache=True, nogil=True)
def _kth_largest(values: Floats, k: int) -> np.float32:
    counts = np.zeros(_NUM_KEYS, dtype=np.int64)
    keys = values.view(np.int32)
    for index in range(len(values)):
        counts[keys[index] >> _KEY_SHIFT] += 1
    key, num_above = _NUM_KEYS - 1, 0
    while num_above + counts[key] < k:
        num_above += counts[key]
        key -= 1
    return _members(values, key)[k - num_above - 1]


@numba.njit(cache=True, nogil=True)
def _nucleus_floor(values: Floats, share: float, floor: np.float32) -> np.float32:
    """The value of the last token that the most likely ones need to reach their share of the mass above the floor."""
    total = _mass(values, floor)
    needed = share * total
    # Tokens below this have less than 1 - share together, so none of them is needed (half of it, for rounding).
    spared = np.float32(0.5 * (1.0 - share) * total / len(values))
    masses = np.zeros(_NUM_KEYS, dtype=np.float64)
    keys = values.view(np.int32)
    for index in range(len(values)):
        if values[index] >= max(floor, spared):
            masses[keys[index] >> _KEY_SHIFT] += values[index]
    reached = 0.0
    for key in range(_NUM_KEYS - 1, -1, -1):
        if masses[key] > 0 and reached + masses[key] >= needed:
            for member in _members(values, key):
                reached += member
                if reached >= needed:
                    return member
        reached += masses[key]
    return floor


@numba.njit(cache=True, nogil=True)
def _members(values: Floats, key: int) -> Floats:
    """The values of one histogram key, largest first."""
    keys = values.view(np.int32)
    found = np.empty(len(values), dtype=np.float32)
    num_found = 0
    for index in range(len(values)):
        if keys[index] >> _KEY_SHIFT == key:
            found[num_found] = values[index]
            num_found += 1
    found = found[:num_found]
    found.sort()
    return found[::-1]


@numba.njit(cache=True, nogil=True)
def _inverse_cdf(values: Floats, floor: np.float32, uniform: float) -> int:
    """Index of the first value at which the mass that reaches the floor exceeds uniform * all of it."""
    num_blocks = (len(values) + _BLOCK - 1) // _BLOCK
    masses = np.empty(num_blocks, dtype=np.float64)
    total = 0.0
    for block in range(num_blocks):
        masses[block] = _mass(values[block * _BLOCK : (block + 1) * _BLOCK], floor)
        total += masses[block]
    target = uniform * total
    chosen, reached, before = 0, 0.0, 0.0
    for block in range(num_blocks):
        if masses[block] > 0:
            chosen, before = block, reached
            reached += masses[block]
            if reached > target:
                break
    last = -1
    for index in range(chosen * _BLOCK, min((chosen + 1) * _BLOCK, len(values))):
        if values[index] > 0 and values[index] >= floor:
            before += values[index]
            last = index
            if before > target:
                break
    return last
