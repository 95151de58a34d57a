"""However wrong the predictions are, drafting stops when it has lost its allowance, and comes back to try again."""

from __future__ import annotations

import pytest

from threefold.draft.ledger import ALLOWANCE, MOST_STEPS, START_STEPS, Ledger


def run(ledger: Ledger, num_rows: int, num_steps: int, saved_ms: float) -> int:
    """Steps of 10 ms, with drafts whenever they are allowed; returns how many had drafts."""
    num_drafted = 0
    for _ in range(num_steps):
        may_draft = ledger.may_draft(num_rows)
        num_drafted += may_draft
        ledger.settle(num_rows, 10.0, 10.0, saved_ms if may_draft else 0.0)
    return num_drafted


@pytest.mark.parametrize("loss", [0.02, 0.2, 1.0, 3.0])
def test_what_is_lost_is_bounded_whatever_a_step_loses(loss: float) -> None:
    num_drafted = run(Ledger(), 4, 20_000, saved_ms=-10.0 * loss)

    assert num_drafted * loss <= START_STEPS + loss + (ALLOWANCE + 0.001) * 20_000 + 2.0


def test_what_pays_is_never_stopped() -> None:
    ledger = Ledger()

    assert run(ledger, 4, 1_000, saved_ms=0.5) == 1_000


def test_luck_may_change_from_step_to_step() -> None:
    ledger = Ledger()
    for index in range(4_000):  # one step in four saves four, the others lose one
        assert ledger.may_draft(1)
        ledger.settle(1, 10.0, 10.0, 40.0 if index % 4 == 3 else -10.0)


def test_a_lost_account_is_tried_again_and_stays_open_once_it_pays() -> None:
    ledger = Ledger()
    run(ledger, 4, 2_000, saved_ms=-10.0)
    assert 0 < run(ledger, 4, 2_000, saved_ms=-10.0) < 50  # now and then
    run(ledger, 4, 2_000, saved_ms=5.0)
    assert run(ledger, 4, 500, saved_ms=5.0) == 500


def test_old_gains_do_not_pay_for_new_losses_for_long() -> None:
    ledger = Ledger()
    run(ledger, 4, 10_000, saved_ms=20.0)

    assert run(ledger, 4, 100, saved_ms=-10.0) <= MOST_STEPS + 2


def test_each_size_of_the_batch_has_an_account_of_its_own() -> None:
    ledger = Ledger()
    run(ledger, 200, 1_000, saved_ms=-10.0)

    assert not ledger.may_draft(200)
    assert not ledger.may_draft(175)
    assert ledger.may_draft(1)
    assert ledger.may_draft(100)


@pytest.mark.parametrize("num_users", [4, 16, 64, 256])
def test_one_row_less_than_a_power_of_two_is_no_other_size(num_users: int) -> None:
    """A user who is between two requests moves nobody to an account that knows nothing."""
    ledger = Ledger()
    run(ledger, num_users, 1_000, saved_ms=-10.0)

    assert not ledger.may_draft(num_users - 1)
