import itertools

import numpy as np
import pytest

from threefold.cost import CostCurve, StepShape
from threefold.draft.appetite import Appetite
from threefold.draft.worth import ASK_AGAIN_STEPS

KNOTS = [(1, 13.0), (8, 13.2), (16, 18.6), (64, 50.0), (256, 175.0)]


def ask(appetite: Appetite, num_rows: int) -> list[int]:
    lengths = appetite.ask(range(num_rows))
    return [lengths.get(request_id, 0) for request_id in range(num_rows)]


def run(appetite: Appetite, num_rows: int, num_steps: int, draft_ms: float, survival: float = 0.0) -> list[list[int]]:
    """Steps in which every row asked gets drafts of this conditional survival, or none at 0."""
    shape = StepShape(num_rows, num_rows, 100 * num_rows)
    asked: list[list[int]] = []
    for _ in range(num_steps):
        before = asked[-1] if asked else [0] * num_rows
        asked.append(ask(appetite, num_rows))
        rows = [request_id for request_id in range(num_rows) if before[request_id] and survival]
        if rows:
            given = np.zeros((len(rows), 8))
            for row, request_id in enumerate(rows):
                given[row, : before[request_id]] = survival ** np.arange(1, before[request_id] + 1)
            appetite.learn(rows, given)
        step_ms = 13.0 + draft_ms * max(asked[-1])
        appetite.end_step(shape, step_ms, draft_ms * max(asked[-1]))
    return asked


def started(num_rows: int, limit: int = 8, sight_rows: int = 0) -> Appetite:
    appetite = Appetite(CostCurve(KNOTS), 8, sight_rows=sight_rows)
    for request_id in range(num_rows):
        appetite.start(request_id, limit)
    return appetite


def test_cheap_drafting_is_always_asked_for_all() -> None:
    asked = run(started(4), 4, 50, draft_ms=1e-4)
    assert asked[-1] == [8] * 4


def test_a_limit_holds_and_zero_means_never() -> None:
    appetite = started(1, limit=3)
    appetite.start(1, 0)
    asked = run(appetite, 2, 60, draft_ms=1e-4)
    assert asked[-1] == [3, 0]
    assert all(lengths[1] == 0 for lengths in asked)


def test_costly_drafting_that_brings_nothing_is_given_up_but_for_cheap_probes() -> None:
    asked = run(started(4), 4, 3000, draft_ms=3.0)
    late = [max(lengths) for lengths in asked[1000:]]
    lost_ms = 3.0 * sum(late)
    assert 0 < lost_ms < 0.005 * 13.0 * len(late)


def test_costly_drafting_that_is_right_is_kept() -> None:
    asked = run(started(2), 2, 200, draft_ms=1.0, survival=0.95)
    assert min(asked[-1]) >= 4


def test_what_returns_is_found_again() -> None:
    appetite = started(4)
    run(appetite, 4, 600, draft_ms=3.0)
    asked = run(appetite, 4, 4000, draft_ms=1.0, survival=0.97)
    assert min(asked[-1]) > 2


def test_a_row_that_never_matches_is_asked_seldom_when_asking_is_not_free() -> None:
    appetite = started(64)
    shape = StepShape(64, 64, 6400)
    asked: list[list[int]] = []
    for _ in range(400):
        before = asked[-1] if asked else [0] * 64
        asked.append(ask(appetite, 64))
        rows = [request_id for request_id in range(32) if before[request_id]]  # the others find nothing, ever
        if rows:
            given = np.zeros((len(rows), 8))
            for row, request_id in enumerate(rows):
                given[row, : before[request_id]] = 0.97 ** np.arange(1, before[request_id] + 1)
            appetite.learn(rows, given)
        draft_ms = 0.02 * sum(length > 0 for length in asked[-1])
        appetite.end_step(shape, 50.0 + draft_ms, draft_ms)
    late = np.array(asked[-4 * ASK_AGAIN_STEPS :]) > 0
    assert late[:, :32].mean() > 0.95
    assert late[:, 32:].mean() < 0.2


def test_a_request_may_leave_between_asking_and_answer() -> None:
    appetite = started(2)
    appetite.start(2, 8)
    appetite.ask([0, 1, 2])
    appetite.stop(2)  # ended by the step that was to bring its drafts
    appetite.end_step(StepShape(3, 3, 0), 13.0, 0.1)
    appetite.stop(0)
    appetite.stop(0)
    appetite.ask([1])
    appetite.end_step(StepShape(1, 1, 0), 13.0, 0.1)
    appetite.end_step(StepShape(512, 1, 512), 100.0, 0.0)  # a step of prompts alone


def test_a_price_that_was_never_right_does_not_stand_for_ever() -> None:
    appetite = started(1)
    shape = StepShape(1, 1, 100)
    ask(appetite, 1)
    appetite.end_step(shape, 5013.0, 5000.0)  # something else held the host up
    asked = run(appetite, 1, 6_000, draft_ms=0.5, survival=0.95)
    assert min(asked[-1]) == 8


def test_two_steps_at_once_are_kept_apart() -> None:
    in_order, overlapped = started(3), started(3)
    shape = StepShape(3, 3, 300)
    asked: list[list[list[int]]] = []
    for appetite in (in_order, overlapped):
        lengths = [ask(appetite, 3)]
        for _ in range(200):
            if appetite is overlapped:
                appetite.begin_step()
                lengths.append(ask(appetite, 3))
                assert appetite.num_ending == 3
            draft_ms = 2.0 * max(lengths[-1 - (appetite is overlapped)])
            appetite.end_step(shape, 13.0 + draft_ms, draft_ms)
            if appetite is in_order:
                lengths.append(ask(appetite, 3))
        asked.append(lengths)
    plain, late = ([max(step) for step in lengths] for lengths in asked)
    assert plain.count(0) > 150
    assert abs(plain.count(0) - late.count(0)) < 20, "what costs and brings nothing is given up either way"


def test_a_step_planned_ahead_is_asked_for_by_its_own_book() -> None:
    appetite = started(2)
    appetite.ask([0, 1])
    appetite.begin_step()
    appetite.ask([0])
    assert (appetite.num_ending, appetite.num_planned) == (2, 1)
    appetite.end_step(StepShape(2, 2, 100), 13.0, 0.0)
    assert (appetite.num_ending, appetite.num_planned) == (1, 1)


def test_with_sight_rows_are_asked_when_what_is_there_is_worth_the_time() -> None:
    appetite = Appetite(CostCurve(KNOTS, draft_start_ms=3.0), 8, sight_rows=3)
    for request_id in range(3):
        appetite.start(request_id, 8)
    run(appetite, 3, 10, draft_ms=0.0)
    shape = StepShape(3, 3, 300)
    asked = []
    for seen in ({0: 0.0, 1: 0.0, 2: 0.0}, {0: 0.0, 1: 2.0, 2: 0.0}, {0: 0.0, 1: 0.01, 2: 0.0}):
        appetite.glimpse(seen)
        asked.append(ask(appetite, 3))
        appetite.end_step(shape, 13.0 + 3.0 * any(asked[-1]), 3.0 * any(asked[-1]))
    assert asked == [[0, 0, 0], [8, 8, 8], [0, 0, 0]]


def test_what_was_asked_on_sight_is_asked_on_until_nothing_comes() -> None:
    appetite = started(1, sight_rows=3)
    run(appetite, 1, 200, draft_ms=3.0)
    shape = StepShape(1, 1, 100)
    appetite.glimpse({0: 3.0})
    for _ in range(20):
        assert ask(appetite, 1) == [8]
        appetite.end_step(shape, 14.0, 1.0)
        appetite.learn([0], 0.9 ** np.arange(1, 9)[None])
    assert ask(appetite, 1) == [8]
    appetite.end_step(shape, 14.0, 1.0)  # and this time nothing comes
    ask(appetite, 1)
    appetite.end_step(shape, 14.0, 1.0)
    assert ask(appetite, 1) == [0]


def test_with_more_rows_than_are_looked_at_asking_is_the_way_to_know() -> None:
    appetite = started(4, sight_rows=3)
    appetite.glimpse({99: 1.0})  # one that left
    assert run(appetite, 4, 10, draft_ms=1e-4)[-1] == [8] * 4


@pytest.mark.parametrize("is_behind", [False, True])
def test_drafts_made_behind_a_step_are_paid_for_by_the_next(is_behind: bool) -> None:
    """Askings of one and of two tokens in turn, each of which takes as long as it takes, now or a step later."""
    curve = CostCurve(KNOTS)
    appetite, before = Appetite(curve, 2, is_behind=is_behind), 0
    for step in range(400):
        appetite.start(0, 1 + step % 2)
        (asked,) = ask(appetite, 1)
        draft_ms = 0.5 * (before if is_behind else asked)
        appetite.end_step(StepShape(1, 1, 100), 10.0 + draft_ms, draft_ms)
        before = asked
    assert curve.draft_ms(1, 2, 2) == pytest.approx(1.0, rel=0.1)
    assert curve.draft_ms(1, 1, 1) == pytest.approx(0.5, rel=0.2)


def run_looked_up(appetite: Appetite, shape: StepShape, num_steps: int) -> int:
    """Askings of steps in which nothing is ever found, at 0.1 ms and 0.01 ms a row."""
    num_asked = 0
    for _ in range(num_steps):
        num_now = sum(length > 0 for length in ask(appetite, shape.num_rows))
        draft_ms = (0.1 + 0.01 * num_now) if num_now else 0.0
        appetite.end_step(shape, CostCurve(KNOTS).forward_ms(shape) + draft_ms, draft_ms)
        num_asked += num_now
    return num_asked


def test_a_crowd_in_which_nothing_could_pay_is_hardly_asked_from_the_first_step_on() -> None:
    cost = CostCurve(KNOTS, draft_start_ms=0.1, draft_row_ms=0.01)
    appetite = Appetite(cost, 8, has_rounds=False)
    for request_id in range(64):
        appetite.start(request_id, 8)
    assert ask(appetite, 64) == [0] * 64
    assert run_looked_up(appetite, StepShape(64, 64, 6400), 160) < 0.08 * 160 * 64


def test_what_a_request_was_worth_is_forgotten_when_the_load_is_another() -> None:
    """Left out among sixteen, asked again when only two are left."""
    appetite = Appetite(CostCurve(KNOTS, draft_start_ms=0.1, draft_row_ms=0.05), 8, has_rounds=False)
    for request_id in range(16):
        appetite.start(request_id, 8)
    shape = StepShape(16, 16, 1600)
    for _ in range(200):
        found = [i for i, length in enumerate(ask(appetite, 16)) if length and i >= 2]
        appetite.end_step(shape, 20.0, 0.9)
        appetite.learn(found, np.tile(0.9 ** np.arange(1, 9), (len(found), 1)))
    asked = [ask(appetite, 16)]
    appetite.end_step(shape, 20.0, 0.9)
    assert asked[0][:2] == [0, 0]
    assert min(asked[0][2:]) > 0
    assert min(ask(appetite, 2)) > 0


def test_a_step_is_quiet_when_nobody_is_asked_and_nothing_is_owed() -> None:
    appetite = started(4)
    shape = StepShape(4, 4, 400)
    run(appetite, 4, 600, draft_ms=3.0)  # given up
    quiet = []
    for _ in range(400):
        asked = any(ask(appetite, 4))
        quiet.append((asked, appetite.is_quiet))
        appetite.end_step(shape, 13.0 + 3.0 * asked, 3.0 * asked)
    assert sum(is_quiet for _, is_quiet in quiet) > 350
    for (asked, is_quiet), (_, next_is_quiet) in itertools.pairwise(quiet):
        if asked:
            assert not is_quiet
            assert not next_is_quiet, "what was asked for may come, and what it cost is known now"


def test_quiet_steps_come_to_the_same_decisions() -> None:
    """Those who probe do so in the same steps, whichever way a quiet step ends."""
    one_by_one, together = started(4), started(4)
    shape, asked = StepShape(4, 4, 400), []
    for appetite in (one_by_one, together):
        lengths, num_waiting = [], 0
        for _ in range(3000):
            lengths.append(ask(appetite, 4))
            is_asking = any(lengths[-1])
            if appetite is together and appetite.is_quiet:
                num_waiting += 1
                if appetite.end_quiet_step():
                    appetite.earn(13.0, num_waiting)
                    num_waiting = 0
                    appetite.decide(shape)
                continue
            if num_waiting:
                appetite.earn(13.0, num_waiting)
                num_waiting = 0
            appetite.end_step(shape, 13.0 + 3.0 * is_asking, 3.0 * is_asking)
        asked.append([step for step, now in enumerate(lengths) if any(now)])
    assert len(asked[0]) > 5
    assert asked[0] == asked[1]


class Settled(CostCurve):
    """A price of asking that was learned where few rows waited, and still is."""

    def observe_draft(self, *_: float) -> None:
        pass


def test_one_row_asked_alone_is_paid_for_by_what_it_came_to() -> None:
    """It holds 256 rows up, which the price of asking one knows nothing of."""
    cost = Settled([(1, 0.7), (256, 1.5), (1024, 5.0)], draft_start_ms=0.5, draft_row_ms=0.01)
    appetite = Appetite(cost, 8, has_rounds=False)
    for request_id in range(256):
        appetite.start(request_id, 8)
    shape, lost_ms, is_behind = StepShape(256, 256, 25_600), [], False
    for _ in range(40_000):
        num_asked = len(appetite.ask(range(256)))
        draft_ms = 0.2 * (num_asked > 0) + 4.0 * is_behind
        appetite.end_step(shape, 1.5 + draft_ms, draft_ms)
        lost_ms.append(draft_ms)
        is_behind = num_asked == 1
    late = lost_ms[10_000:]
    assert 0.0 < sum(late) < 0.0015 * 1.5 * len(late)
