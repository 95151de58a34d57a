"""Quiet steps are put together only where they are alike, and none gets lost."""

from __future__ import annotations

import pytest

from threefold.cost import StepShape
from threefold.draft.quiet import MeanStep, QuietSteps


def shape(num_rows: int, kv_tokens: int = 100) -> StepShape:
    return StepShape(num_rows, num_rows, kv_tokens)


def test_the_first_fits_whatever_it_is() -> None:
    assert QuietSteps().fits(64, 1.0)


def test_they_are_told_as_so_many_of_their_mean() -> None:
    quiet = QuietSteps()
    for num_rows, kv_tokens, ms in ((64, 1000, 1.0), (63, 1200, 1.1), (65, 1100, 0.9), (64, 1100, 1.0)):
        assert quiet.fits(num_rows, ms)
        quiet.add(shape(num_rows, kv_tokens), ms, num_rows)
    assert quiet.num_steps == 4
    assert quiet.take() == MeanStep(4, shape(64, 1100), 1.0, pytest.approx(0.005), 64.0)
    assert quiet.num_steps == 0


def test_another_batch_and_an_unusual_time_do_not_fit() -> None:
    quiet = QuietSteps()
    quiet.add(shape(64), 1.0, 64)
    assert quiet.fits(61, 1.15)
    assert not quiet.fits(40, 1.0)
    assert not quiet.fits(64, 1.5)
    assert not quiet.fits(64, 0.5)


def test_few_rows_are_another_batch_when_one_is_missing() -> None:
    quiet = QuietSteps()
    quiet.add(shape(4), 1.0, 4)
    assert not quiet.fits(3, 1.0)


def test_what_was_taken_is_not_told_again() -> None:
    quiet = QuietSteps()
    quiet.add(shape(64), 1.0, 64)
    quiet.take()
    assert quiet.fits(1, 9.0)
    quiet.add(shape(1, 50), 9.0, 1)
    assert quiet.take() == MeanStep(1, shape(1, 50), 9.0, 0.0, 1.0)
