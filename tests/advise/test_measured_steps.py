"""What steps take beyond the curve: told apart from readings, and measured on an engine."""

import pytest

from threefold.advise.curve_executor import Host
from threefold.advise.measured_steps import LEAST_STEPS, Insistent, _drafting, _medians, _plain, _Reading
from threefold.cost import CostCurve, StepShape
from threefold.draft.policy import RowDraft

CURVE = CostCurve([(1, 4.0), (8, 5.0), (64, 20.0)])


def reading(num_rows: int, num_drafts: int, host: Host) -> _Reading:
    curve_ms = CURVE.forward_ms(StepShape(num_rows + num_drafts, num_rows, 0))
    return _Reading(num_rows, num_drafts, curve_ms, curve_ms + host.ms(num_rows, num_drafts))


def test_plain_steps_take_what_they_were_measured_to_take() -> None:
    """A curve of another day is off by another share at every number of rows, and may say too much."""
    plain = _plain([_Reading(1, 0, 4.5, 4.2), _Reading(4, 0, 5.0, 5.5), _Reading(16, 0, 7.0, 8.5)])
    assert [plain.ms(num_rows) for num_rows in (1, 4, 16)] == pytest.approx([-0.3, 0.5, 1.5])
    assert plain.ms(10) == pytest.approx(1.0)
    assert plain.ms(0) == plain.ms(1)
    assert plain.ms(64) == plain.ms(16)
    assert _plain([]).ms(3) == 0.0


def test_drafts_are_told_apart_from_rows() -> None:
    plain = Host(by_rows=((1, 0.2), (8, 0.9)))
    more = Host(0.8, 0.05, 0.02, plain.by_rows)
    found = _drafting(
        plain, [reading(num_rows, num_rows * length, more) for num_rows in (1, 8) for length in (1, 4, 8)]
    )
    assert (found.step_ms, found.row_ms, found.draft_ms) == pytest.approx((0.8, 0.05, 0.02), rel=1e-3)
    assert found.by_rows == plain.by_rows


def test_drafts_never_make_a_step_shorter() -> None:
    plain = Host(by_rows=((1, 0.5),))
    assert _drafting(plain, [reading(num_rows, 0, Host()) for num_rows in (1, 8)]) == plain
    assert _drafting(plain, []) == plain


def test_steps_alike_count_by_their_middle() -> None:
    steps = [_Reading(8, 16, 5.0, ms) for ms in (9.0, 6.0, 6.2)] + [_Reading(8, 64, 9.0, 12.0)] * (LEAST_STEPS - 1)
    assert _medians(steps) == [_Reading(8, 16, 5.0, 6.2)]


def test_the_controller_is_asked_and_not_heeded() -> None:
    policy = Insistent(CostCurve([(1, 4.0), (2, 400.0), (64, 4000.0)]), 4)
    for request_id in (1, 2):
        policy.start(request_id, 4)
    assert policy.appetites([1, 2]) == {1: 4, 2: 4}
    rows = [RowDraft(1, (0.1, 0.01), "ngram", 40), RowDraft(2, (), "", 40)]
    assert policy.choose(rows, StepShape(2, 2, 80)) == [2, 0]
