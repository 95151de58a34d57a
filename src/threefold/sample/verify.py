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

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from threefold.sample.noise import Purpose, uniforms


class Acceptance(Protocol):
    """Decides how many leading drafts of a row hold."""

    def num_accepted(self, drafts: Sequence[int], drawn: Sequence[int], seed: int, output_position: int) -> int:
        """Count the accepted drafts.

        Args:
            drafts: the row's k drafts.
            drawn: tokens drawn at the k + 1 positions, each with the drafts before it as history.
            seed: the request's seed.
            output_position: index of the first drawn token in the output.

        Returns:
            0 to k; the tokens committed are that many drafts and the token drawn behind them.
        """


class ExactAcceptance:
    """The rule above."""

    def num_accepted(self, drafts: Sequence[int], drawn: Sequence[int], seed: int, output_position: int) -> int:  # noqa: ARG002
        """Count the drafts before the first that differs from the token drawn in its place."""
        return num_common(drafts, drawn)


class SyntheticAcceptance:
    """Accepts by decree, whatever the model says, so that dummy weights can be benchmarked at a chosen acceptance.

    Args:
        rates: probability that the 1st, 2nd, … draft is accepted, unconditional, not increasing; later drafts never.
    """

    def __init__(self, rates: Sequence[float]) -> None:
        self._rates = tuple(rates)

    def num_accepted(self, drafts: Sequence[int], drawn: Sequence[int], seed: int, output_position: int) -> int:  # noqa: ARG002
        """Count by one number drawn for the window: draft i holds where it lies below rate i."""
        number = uniforms(
            np.array([seed % 2**64], dtype=np.uint64), np.array([output_position]), Purpose.SYNTHETIC_ACCEPTANCE
        )[0]
        return sum(bool(number < rate) for rate in self._rates[: len(drafts)])


def num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common beginning."""
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return min(len(first), len(second))
