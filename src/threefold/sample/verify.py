"""How many drafts of a row hold: exact speculative verification, and acceptance by decree for benchmarks.

Leviathan et al. 2022 (arXiv 2211.17192) accept a draft d with probability min(1, p(d) / q(d)) and else draw from the
normalised max(0, p - q). Our drafts are certain proposals (q is one at d): accept with probability p(d), else draw from
p without d, renormalised. Both happen at once when the token x is drawn from p as if there were no draft: x = d has
probability p(d), and given x != d, x is distributed as p without d. So

    accept while the drawn token equals the draft; the first that differs is the correction;
    after a whole accepted window the token drawn behind it is the bonus.

Since each x is drawn with the same number for (seed, output position) as without drafts, the output is not only
distributed as without speculation: it is the same, token for token. Greedy is the case where p is one at the
most likely token. Knows nothing about logits.
"""
# numba brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

import numba
import numpy as np
import numpy.typing as npt

from threefold.sample.noise import Purpose, uniforms

IntArray = npt.NDArray[np.int64]
SeedArray = npt.NDArray[np.uint64]


class Acceptance(Protocol):
    """The rule by which drafts hold."""

    def decreed(self, num_drafts: IntArray, seeds: SeedArray, output_positions: IntArray) -> IntArray | None:
        """How many drafts hold whatever is drawn, if that is the rule.

        Args:
            num_drafts: [num_rows] drafts of each row.
            seeds: [num_rows] the requests' seeds.
            output_positions: [num_rows] index of the first token drawn for each row in its output.

        Returns:
            [num_rows], 0 to num_drafts; the tokens committed are that many drafts and the token drawn behind them.
            None = drafts hold as long as they are what is drawn in their place.
        """


class ExactAcceptance:
    """The rule above."""

    def decreed(self, num_drafts: IntArray, seeds: SeedArray, output_positions: IntArray) -> None:  # noqa: ARG002
        """Drawing decides."""
        return


class SyntheticAcceptance:
    """Accepts by decree, whatever the model says, so that dummy weights can be benchmarked at a chosen acceptance.

    Args:
        rates: probability that the 1st, 2nd, … draft is accepted, unconditional, not increasing; later drafts never.
    """

    def __init__(self, rates: Sequence[float]) -> None:
        self._rates = np.array(rates, dtype=np.float64)

    def decreed(self, num_drafts: IntArray, seeds: SeedArray, output_positions: IntArray) -> IntArray:
        """Count by one number drawn for the window: draft i holds where it lies below rate i."""
        numbers = uniforms(seeds, output_positions, Purpose.SYNTHETIC_ACCEPTANCE)
        num_below: IntArray = (numbers[:, None] < self._rates).sum(axis=1)
        return np.minimum(num_below, num_drafts)


@numba.njit(cache=True, nogil=True)
def count_committed(
    drawn: IntArray, values: npt.NDArray[np.float32], first: IntArray, num_drafts: IntArray, draft_ids: IntArray
) -> tuple[IntArray, bool]:
    """How many tokens each row commits where drawing decides: the drafts that were drawn in their place, and one more.

    Args:
        drawn: [num_positions] tokens.
        values: [num_positions] largest logits.
        first: [num_rows] index of the row's first position.
        num_drafts: [num_rows].
        draft_ids: all drafts, one row's behind the other's.

    Returns:
        [num_rows] tokens, and whether all values are numbers.
    """
    counts = np.empty(len(first), dtype=np.int64)
    start = 0
    for row in range(len(first)):
        num_held = 0
        while num_held < num_drafts[row] and drawn[first[row] + num_held] == draft_ids[start + num_held]:
            num_held += 1
        counts[row] = num_held + 1
        start += num_drafts[row]
    return counts, bool(np.all(np.isfinite(values)))


@cache
def prepare() -> None:
    """Have it compiled, or its compiled form read from the disk, before a step depends on it."""
    none = np.zeros(0, dtype=np.int64)
    count_committed(none, np.zeros(0, dtype=np.float32), none, none, none)


def num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common beginning."""
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return min(len(first), len(second))
