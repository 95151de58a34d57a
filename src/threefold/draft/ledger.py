"""The last word on speculation: what drafts cost and earned, measured, against a small allowance.

Everything else predicts: acceptance, the cost of a step, the price of asking. A prediction can be wrong for as long as
nobody looks at the sum. Here every step with drafts is booked by what it took and what the same tokens would have taken
without, and when the balance is spent drafting stops, whatever the predictions say. So the loss is bounded: by what an
account begins with, and from then on by ALLOWANCE of the time. One account for each size of the batch, since what loses
with many rows may pay with one. Knows nothing about why.

    balance   + what the drafts of a step saved (or less than nothing)   + ALLOWANCE of each step's time
    drafts    until the balance is spent, and again from REOPEN steps' time on
"""

from __future__ import annotations

ALLOWANCE = 0.01
"""Share of the time that drafting may lose for ever."""
START_STEPS = 5.0
"""An account begins with this many steps' time: what learning may cost."""
MOST_STEPS = 16.0
"""No account holds or owes more: old gains do not pay for new losses for long."""
REOPEN_STEPS = 2.0
"""What a trial may lose."""
WORST_STEPS = 4.0
"""No step should be booked as losing more than so many without drafts: that was hardly the drafts' doing."""


class _Account:
    __slots__ = ("balance_ms", "is_open")

    def __init__(self, balance_ms: float, *, is_open: bool) -> None:
        self.balance_ms = balance_ms
        self.is_open = is_open


class Ledger:
    """Accounts by the size of the batch."""

    def __init__(self) -> None:
        self._accounts: dict[int, _Account] = {}

    def may_draft(self, num_rows: int) -> bool:
        """Whether a step of about so many rows may draft."""
        size = _size(num_rows)
        account = self._accounts.get(size)
        return account.is_open if account is not None else self._smaller_is_open(size)

    def settle(self, num_rows: int, plain_ms: float, step_ms: float, saved_ms: float, num_steps: int = 1) -> None:
        """Book a step, or several alike.

        Args:
            num_rows: rows that committed tokens.
            plain_ms: what such a step takes without drafts and without prompts; limits are so many of these.
            step_ms: its time, drafting included.
            saved_ms: time that its tokens would have taken without drafts, less what they took; 0 without drafts.
            num_steps: how many.
        """
        size = _size(num_rows)
        account = self._accounts.get(size)
        if account is None:
            is_open = self._smaller_is_open(size)
            account = self._accounts[size] = _Account(START_STEPS * plain_ms if is_open else 0.0, is_open=is_open)
        most_ms = MOST_STEPS * plain_ms
        balance_ms = account.balance_ms + (saved_ms + ALLOWANCE * step_ms) * num_steps
        account.balance_ms = min(max(balance_ms, -most_ms), most_ms)
        if account.is_open:
            account.is_open = account.balance_ms >= 0.0
        else:
            account.is_open = account.balance_ms >= REOPEN_STEPS * plain_ms

    def _smaller_is_open(self, size: int) -> bool:
        """Whether nothing is known against drafts: what loses with few rows will not pay with more."""
        smaller = [known for known in self._accounts if known < size]
        return not smaller or self._accounts[max(smaller)].is_open


def _size(num_rows: int) -> int:
    """Powers of two lie within a size, not between two: with 16 users there are 15 or 16 rows."""
    return (3 * num_rows // 4).bit_length()
