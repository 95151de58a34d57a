"""What steps took and earned, and who may go on for it."""

from __future__ import annotations

import pytest

from threefold.cost import CostCurve, StepShape
from threefold.draft.books import Books
from threefold.draft.gain import Verified
from threefold.draft.quiet import MeanStep

KNOTS = [(1, 10.0), (8, 10.5), (64, 50.0), (256, 200.0)]


def shape(num_rows: int, num_drafted: int = 0) -> StepShape:
    return StepShape(num_rows + num_drafted, num_rows, 100 * num_rows)


def book_drafted(books: Books, num_rows: int, forward_ms: float, draft_ms: float, num_accepted: int) -> None:
    books.book(
        shape(num_rows, 2 * num_rows),
        forward_ms,
        draft_ms,
        num_rows + num_accepted,
        num_rows=num_rows,
        verified={"ngram": Verified(2 * num_rows, num_accepted)},
        has_drafts=True,
    )


def test_quiet_steps_are_no_gain_and_teach_the_curve() -> None:
    cost = CostCurve(KNOTS)
    books = Books(cost)
    for _ in range(10):
        books.book_quiet(MeanStep(8, shape(64), 60.0, 0.0, 64.0))
    assert books.gain.ratio == pytest.approx(1.0)
    assert cost.forward_ms(shape(64)) == pytest.approx(60.0, rel=0.02)
    assert books.may_draft(64)


def test_drafts_that_are_right_are_a_gain() -> None:
    books = Books(CostCurve(KNOTS))
    for _ in range(50):
        book_drafted(books, 2, 10.4, 0.1, num_accepted=4)
    assert books.gain.ratio == pytest.approx(3 * 10.0 / 10.5, rel=0.05)
    assert books.may_draft(2)


def test_drafts_that_only_cost_end_the_account_of_their_size() -> None:
    books = Books(CostCurve(KNOTS))
    for _ in range(10):
        book_drafted(books, 64, 150.0, 10.0, num_accepted=0)
    assert not books.may_draft(64)
    assert books.may_draft(2)


def test_a_step_that_asks_but_has_no_drafts_says_what_steps_without_take() -> None:
    """Where drafts always pay, such a probe is the only one that does."""
    misled = CostCurve([(tokens, 3 * ms) for tokens, ms in KNOTS])
    books = Books(misled)
    for _ in range(8):
        books.book(shape(64), 50.0, 1.0, 64, num_rows=64, verified={}, has_drafts=True)
    for _ in range(20):
        book_drafted(books, 64, 120.0, 1.0, num_accepted=32)
    assert not books.may_draft(64), "96 tokens in 121 ms, where 64 take 50"


def test_a_prompts_share_of_a_step_is_owed_either_way() -> None:
    books = Books(CostCurve(KNOTS))
    books.book(StepShape(64 + 192, 65, 6400), 200.0, 0.0, 64, num_rows=64, verified={}, has_drafts=False)
    books.book(StepShape(192, 1, 192), 150.0, 0.0, 0, num_rows=0, verified={}, has_drafts=False)
    assert books.gain.ratio == pytest.approx(1.0)


def test_a_surprise_about_drafts_calls_for_a_step_without() -> None:
    books = Books(CostCurve(KNOTS))
    book_drafted(books, 8, 11.0, 0.1, num_accepted=8)
    assert not books.needs_plain, "about what the curve says"
    book_drafted(books, 8, 40.0, 0.1, num_accepted=8)
    assert books.needs_plain
    books.book(shape(8), 10.5, 0.1, 8, num_rows=8, verified={}, has_drafts=True)
    assert not books.needs_plain
    book_drafted(books, 8, 60.0, 0.1, num_accepted=8)
    assert not books.needs_plain, "it is known what steps without take"
