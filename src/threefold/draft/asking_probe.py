"""Asks for more than seems to pay, now and then, as what is believed of drafts nobody asks for would never change.

Knows nothing about who is worth asking. A probe is charged what it is expected to lose, as far as that is known: where
drafts about break even looking again costs next to nothing, so a belief that is slightly wrong does not last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from threefold.draft.asking_price import AskingPrice
from threefold.draft.outlook import Outlook
from threefold.draft.probe import START_STEPS, ProbeBudget
from threefold.draft.yields import DraftYield

FIRST_LOOK_STEPS = 1.0
"""Steps' time that the first asking of all rows may take where drafts are looked up, as none was tried at start: saved
up for, it would come a thousand steps late."""
ONE_SHARE = 0.5
"""One row alone is asked in turns where that takes less than this share of what asking all of them loses."""
LEAST_LOSS = 0.25
"""To ask everybody loses at least this share of its price, by all that the outlook may be wrong."""


class Probe(NamedTuple):
    """Whom a step asks for more than pays."""

    request_id: int | None = None
    """One request alone, for as long a draft as it may have."""
    length: int = 0
    """All requests, for drafts of this length; 0 = as usual."""


NO_PROBE = Probe()


class AskingProbes:
    """Chooses probes within a budget of time.

    Args:
        price: what asking costs.
        draft_yield: what it yields, and how much of that is known.
        max_draft: longest draft ever asked for, tokens.
        has_rounds: each further token costs a draft model's pass.
    """

    def __init__(self, price: AskingPrice, draft_yield: DraftYield, max_draft: int, *, has_rounds: bool) -> None:
        self._price = price
        self._yield = draft_yield
        self._max_draft = max_draft
        self._budget = ProbeBudget(start_steps=START_STEPS if has_rounds else FIRST_LOOK_STEPS)
        self._paid_ms = 0.0  # for the last row that was asked alone

    def earn(self, step_ms: float, num_steps: int = 1) -> None:
        """So many steps took that long each."""
        self._budget.earn(step_ms, num_steps)

    def settle(self, ms: float) -> None:
        """The row that was asked alone held its step and the next up so long.

        That depends on how many rows wait for it, of which the price of asking knows nothing.
        """
        self._budget.owe(ms - self._paid_ms)

    def choose(self, outlook: Outlook, committing: Sequence[int], token_ms: float, turn: int) -> Probe:
        """Longer drafts of all rows than pay, or while off the best of all, or by turns of one row.

        Args:
            outlook: for a step in which these rows commit.
            committing: their request ids.
            token_ms: time that a token takes without drafts.
            turn: counts up.
        """
        num_rows = len(committing)
        plain_ms = token_ms * num_rows
        if outlook.length:
            lengths = range(self._max_draft, outlook.length, -1)
            return next(
                (Probe(length=n) for n in lengths if self._budget.spend(self._loss_ms(outlook, num_rows, plain_ms, n))),
                NO_PROBE,
            )
        one_ms = self._price.even_ms(1, self._max_draft)
        all_ms = self._loss_ms(outlook, num_rows, plain_ms, outlook.best)
        if turn % 2 and one_ms < ONE_SHARE * all_ms:
            if not self._budget.spend(one_ms):
                return NO_PROBE
            self._paid_ms = one_ms
            return Probe(request_id=committing[turn // 2 % num_rows])
        return Probe(length=outlook.best) if self._budget.spend(all_ms) else NO_PROBE

    def _loss_ms(self, outlook: Outlook, num_rows: int, plain_ms: float, length: int) -> float:
        """What asking all rows for drafts of a length loses against what pays best, as far as that is known."""
        now, best = outlook.length, max(1.0, outlook.ratios[outlook.best - 1])
        price_ms = self._price.even_ms(num_rows, length)
        more_ms = price_ms - (self._price.even_ms(num_rows, now) if now else 0.0)
        loss_ms = (plain_ms + price_ms) * (1.0 - outlook.ratios[length - 1] / best)
        loss_ms = min(max(loss_ms, LEAST_LOSS * more_ms), more_ms)
        return float(more_ms - self._yield.share_known(length) * (more_ms - loss_ms))
