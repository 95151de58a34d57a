import numpy as np
import pytest

from threefold.draft.acceptance import Acceptance


def survival_of(acceptance: Acceptance, request_id: int, drafter: str, estimate: list[float]) -> np.ndarray:
    return acceptance.calibrate([request_id], [drafter], [estimate])[0]


def verify(
    acceptance: Acceptance, request_id: int, estimate: list[float], accepted: int, drafter: str = "ngram"
) -> None:
    acceptance.calibrate([request_id], [drafter], [estimate])
    acceptance.observe(request_id, len(estimate), accepted)


def test_without_a_past_the_drafter_is_believed() -> None:
    acceptance = Acceptance(4)
    acceptance.start(1)
    assert survival_of(acceptance, 1, "ngram", [0.8, 0.4, 0.2]) == pytest.approx([0.8, 0.4, 0.2, 0.0])


def test_estimates_are_calibrated_for_requests_to_come() -> None:
    """The drafter says 0.9, one in two passes."""
    acceptance = Acceptance(4)
    for request_id in range(200):
        acceptance.start(request_id)
        verify(acceptance, request_id, [0.9], request_id % 2)
        acceptance.stop(request_id)
    acceptance.start(999)
    assert survival_of(acceptance, 999, "ngram", [0.9])[0] == pytest.approx(0.5, abs=0.06)
    assert survival_of(acceptance, 999, "suffix", [0.9])[0] == pytest.approx(0.9)  # another drafter, another table


def test_a_request_is_told_from_the_average() -> None:
    acceptance = Acceptance(4)
    for request_id in (1, 2):
        acceptance.start(request_id)
    for _ in range(30):
        verify(acceptance, 1, [0.5], 1)
        verify(acceptance, 2, [0.5], 0)
    good, bad = (survival_of(acceptance, request_id, "ngram", [0.5])[0] for request_id in (1, 2))
    assert good > 0.85
    assert bad < 0.15


def test_a_request_that_changes_is_followed() -> None:
    acceptance = Acceptance(4)
    acceptance.start(1)
    for _ in range(100):
        verify(acceptance, 1, [0.7], 0)
    for _ in range(40):
        verify(acceptance, 1, [0.7], 1)
    assert survival_of(acceptance, 1, "ngram", [0.7])[0] > 0.6


def test_a_whole_window_says_nothing_about_the_drafts_it_did_not_have() -> None:
    """Two drafts always pass, a third is never tested: it keeps its estimate but for the request's own luck."""
    acceptance = Acceptance(4)
    for request_id in range(100):
        acceptance.start(request_id)
        verify(acceptance, request_id, [0.5, 0.25], 2)
    acceptance.start(999)
    first, second, third, _ = survival_of(acceptance, 999, "ngram", [0.5, 0.25, 0.125])
    assert first > 0.9
    assert second / first > 0.9
    assert third / second == pytest.approx(0.5)


def test_drafts_behind_a_rejected_one_are_not_counted() -> None:
    acceptance = Acceptance(4)
    for request_id in range(100):
        acceptance.start(request_id)
        verify(acceptance, request_id, [0.5, 0.25], 0)
    acceptance.start(999)
    first, second, *_ = survival_of(acceptance, 999, "ngram", [0.5, 0.25])
    assert first < 0.1
    assert second / first == pytest.approx(0.5)


def test_survival_never_rises_and_stays_possible() -> None:
    acceptance = Acceptance(4)
    acceptance.start(1)
    survival = survival_of(acceptance, 1, "ngram", [1.0, 1.0, 1.0, 0.0])
    assert np.all(np.diff(survival) <= 0)
    assert survival[0] < 1.0
    assert survival[3] == 0.0


def test_reports_about_strangers_are_ignored() -> None:
    acceptance = Acceptance(4)
    acceptance.observe(7, 3, 1)
    acceptance.start(7)
    acceptance.observe(7, 3, 1)  # nothing was expected of it
    acceptance.stop(7)
    acceptance.stop(7)
    assert not acceptance.learn().any()


def test_what_was_promised_and_what_came_of_it_is_told_once() -> None:
    acceptance = Acceptance(4)
    acceptance.start(1)
    verify(acceptance, 1, [0.5, 0.25], 1)
    assert acceptance.learn().tolist() == [pytest.approx([0.5, 0.25, 0.0, 0.0]), [1.0, 0.0, 0.0, 0.0]]
    assert not acceptance.learn().any()


def test_a_place_that_becomes_free_brings_its_next_owner_no_past() -> None:
    acceptance = Acceptance(4)
    acceptance.start(1)
    for _ in range(30):
        verify(acceptance, 1, [0.5], 1)
    acceptance.calibrate([1], ["ngram"], [[0.5]])
    acceptance.observe(1, 1, 1)
    acceptance.stop(1)  # before anybody learned from its last drafts
    acceptance.start(2)
    acceptance.observe(2, 1, 0)  # nothing was expected of it
    of_all = (30 + 1 + 8 * 0.5) / (30 + 1 + 8)  # what the table says; 200 trials are remembered
    assert survival_of(acceptance, 2, "ngram", [0.5])[0] == pytest.approx(of_all, abs=0.01)


def test_more_requests_than_ever_before_find_room() -> None:
    acceptance = Acceptance(4)
    for request_id in range(100):
        acceptance.start(request_id)
        verify(acceptance, request_id, [0.5], 1)
    survival = acceptance.calibrate([0, 99], ["ngram", "ngram"], [[0.5], [0.5]])
    assert survival[:, 0].min() > 0.9
