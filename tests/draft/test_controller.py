import pytest

from threefold.cost import CostCurve, StepShape
from threefold.draft.controller import Controller, DraftPolicy, RowDraft

KNOTS = [(1, 13.0), (8, 13.2), (16, 18.6), (32, 29.7), (64, 50.0), (128, 91.0), (256, 175.0)]


def started(num_rows: int, limit: int = 8) -> Controller:
    controller = Controller(CostCurve(KNOTS), 8)
    for request_id in range(num_rows):
        controller.start(request_id, limit)
    return controller


def drafts(num_rows: int, chance: float, length: int = 4) -> list[RowDraft]:
    survival = tuple(chance**i for i in range(1, length + 1))
    return [RowDraft(request_id, survival, "ngram", 100) for request_id in range(num_rows)]


def shape(num_rows: int) -> StepShape:
    return StepShape(num_rows, num_rows, 100 * num_rows)


def test_it_is_a_draft_policy() -> None:
    policy: DraftPolicy = started(1)
    assert policy.gain_ratio == 1.0


def test_one_user_gets_the_plateau_and_a_crowd_gets_nothing() -> None:
    assert started(1).choose(drafts(1, 0.8), shape(1)) == [4]
    assert sum(started(64).choose(drafts(64, 0.6), shape(64))) <= 8  # but for a probe


def test_rows_without_drafts_count_as_load() -> None:
    """One row of 64 has drafts: they cost what they cost in a full step."""
    alone = started(64)
    beside = started(64)
    beside.appetites(range(64))
    rows = drafts(1, 0.7)
    assert alone.choose(rows, shape(1)) == [4]
    assert sum(beside.choose(rows, shape(64))) < 4


def test_no_rows_and_empty_drafts_are_answered() -> None:
    controller = started(2)
    assert controller.choose([], shape(2)) == []
    assert controller.choose([RowDraft(0, (), "", 10), RowDraft(1, (0.9,), "ngram", 10)], shape(2)) == [0, 1]


def test_more_drafts_than_the_longest_are_cut() -> None:
    assert started(1).choose(drafts(1, 0.95, length=20), shape(1))[0] <= 8


def test_no_count_exceeds_what_is_at_hand() -> None:
    controller = started(8)
    rows = [RowDraft(i, (0.9, 0.8, 0.7)[: i % 4], "ngram", 50 * i) for i in range(8)]
    for _ in range(100):
        controller.appetites(range(8))
        counts = controller.choose(rows, shape(8))
        assert all(0 <= count <= len(row.survival) for row, count in zip(rows, counts, strict=True))
        for row, count in zip(rows, counts, strict=True):
            if count:
                controller.observe(row.request_id, row.drafter, count, count // 2)
        controller.observe_step(shape(8)._replace(num_tokens=8 + sum(counts)), 14.0, 0.01, 8 + sum(counts) // 2)


def test_bad_drafts_are_given_up_and_the_gain_says_so() -> None:
    controller = started(16)
    late = 0
    for step in range(400):
        controller.appetites(range(16))
        counts = controller.choose(drafts(16, 0.9), shape(16))
        for i, count in enumerate(counts):
            if count:
                controller.observe(i, "ngram", count, 0)
        num_tokens = 16 + sum(counts)
        forward_ms = CostCurve(KNOTS).forward_ms(StepShape(num_tokens, 16, 1600))
        controller.observe_step(StepShape(num_tokens, 16, 1600), forward_ms, 0.01, 16)
        if step == 20:  # after the first steps' trials
            assert controller.gain_ratio < 0.95
        late += sum(counts) if step >= 200 else 0
    assert late < 0.05 * 200 * 64


def test_a_fake_executor_without_times_teaches_no_cost() -> None:
    cost = CostCurve(KNOTS)
    controller = Controller(cost, 8)
    controller.start(0, 8)
    before = cost.to_dict()
    for _ in range(50):
        controller.appetites([0])
        counts = controller.choose(drafts(1, 0.8), shape(1))
        controller.observe(0, "ngram", counts[0], 1)
        controller.observe_step(shape(1), 0.0, 0.0, 2)
    assert cost.to_dict() == before
    assert controller.gain_ratio == 1.0


def test_requests_come_and_go() -> None:
    controller = started(3)
    controller.choose(drafts(3, 0.9), shape(3))
    controller.stop(1)
    controller.stop(1)
    controller.observe(1, "ngram", 2, 1)  # a late report about one that left
    controller.observe_step(shape(3), 13.0, 0.0, 3)
    controller.start(1, 8)
    assert controller.appetites([1])[1] > 0
    with pytest.raises(KeyError):
        controller.appetites([99])


def test_whatever_it_believes_it_stops_when_drafts_only_cost() -> None:
    """A price that nobody predicted: every step with drafts takes three times as long, and none of them is right."""
    controller = started(4)
    num_steps, spent_ms, plain_ms = 3_000, 0.0, 0.0
    for _ in range(num_steps):
        asked = controller.appetites(range(4))
        counts = controller.choose(drafts(4, 0.9), shape(4)) if asked else [0] * 4
        for request_id, count in enumerate(counts):
            if count:
                controller.observe(request_id, "ngram", count, 0)
        draft_ms = 26.0 if asked or any(counts) else 0.0
        controller.observe_step(shape(4)._replace(num_tokens=4 + sum(counts)), 13.0, draft_ms, 4)
        spent_ms += 13.0 + draft_ms
        plain_ms += 13.0

    assert spent_ms / plain_ms < 1.03
