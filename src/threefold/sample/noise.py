"""Counter-based random numbers: one uniform for each (seed, output position, purpose).

Keeps no state. The draw for a request's i-th output token depends on nothing but its seed and i, so neither the batch
around it, nor chunks, nor preemption, nor drafts can change a seeded answer.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


class Purpose(enum.IntEnum):
    """What a number is drawn for; different purposes give independent streams."""

    TOKEN = 0
    SYNTHETIC_ACCEPTANCE = 1


def uniforms(
    seeds: npt.NDArray[np.uint64], output_positions: npt.NDArray[np.int64], purpose: Purpose = Purpose.TOKEN
) -> npt.NDArray[np.float64]:
    """Draw one number in [0, 1) for each pair.

    The splitmix64 finaliser (Steele, Lea and Flood 2014) is applied twice, to the seed and then to the position, so
    that neighbouring seeds do not give shifted copies of one stream.

    Args:
        seeds: [n] the requests' seeds.
        output_positions: [n] index of the token being drawn in its request's output.
        purpose: which stream.

    Returns:
        [n] multiples of 2^-53.
    """
    counters = output_positions.astype(np.uint64) * np.uint64(len(Purpose)) + np.uint64(purpose)
    mixed = _mix(_mix(seeds) + counters * _GAMMA)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = values + _GAMMA
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))
