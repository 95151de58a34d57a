"""Who is asked: everybody, but for those whose drafts come to nothing and whose turn it is not."""

from __future__ import annotations

import math

import pytest

from threefold.draft.worth import ANY, ASK_AGAIN_STEPS, RequestWorth


def known(limits: dict[int, int], worth: float = 1.0) -> RequestWorth:
    requests = RequestWorth(8)
    for request_id, limit in limits.items():
        requests.start(request_id, limit, worth)
    return requests


def test_everybody_is_asked_up_to_a_limit_of_his_own() -> None:
    requests = known({1: 8, 2: 100, 3: 2, 4: 0})
    assert requests.asked_for([1, 2, 3, 4], 5, 0.5, step=0) == {1: 5, 2: 5, 3: 2}
    assert requests.asked_for([1, 2, 3, 4], 5, ANY, step=4) == {1: 5, 2: 5, 3: 2}
    assert [requests.limit(request_id) for request_id in (1, 2, 3, 4)] == [8, 8, 2, 0]


def test_who_misses_is_left_out_but_for_its_turn() -> None:
    requests = known({1: 8, 2: 8})
    for _ in range(100):
        requests.miss([1])
        requests.learn([2], [2.0])
    steps = [requests.asked_for([1, 2], 4, 0.5, step=step) for step in range(ASK_AGAIN_STEPS)]
    assert all(asked[2] == 4 for asked in steps)
    assert sum(1 in asked for asked in steps) == 1


def test_the_share_that_is_worth_it() -> None:
    requests = known({1: 8, 2: 8, 3: 8, 4: 0})
    requests.learn([1, 2], [100.0, 100.0])
    assert requests.share_above(2.0) == 0.5
    assert requests.share_above(0.0) == 0.75
    assert RequestWorth(8).share_above(0.0) == 0.0


def test_all_begin_anew_but_those_that_may_not_be_asked() -> None:
    requests = known({1: 8, 2: 0})
    requests.miss([1])
    requests.renew(5.0)
    assert requests.share_above(5.0) == 0.5
    assert requests.asked_for([1, 2], 4, 5.0, step=-2) == {1: 4}


def test_strangers_are_refused_and_who_left_is_forgotten() -> None:
    requests = known({1: 8, 2: 2})
    requests.stop(2)
    requests.stop(2)
    with pytest.raises(KeyError):
        requests.asked_for([1, 2], 4, 0.0, step=0)
    assert requests.still_here({1: 4, 2: 4}) == {1: 4}
    requests.start(2, 8, 1.0)
    assert requests.limit(2) == 8


def test_what_is_seen_is_forgotten_when_nothing_comes_or_nothing_is_there() -> None:
    requests = known({1: 8, 2: 8, 3: 0})
    requests.glimpse({1: 0.0, 2: 0.0, 3: 0.0})
    assert requests.num_seen([1, 2, 3]) == 0.0
    requests.glimpse({1: 2.0, 2: 1.0, 3: 4.0, 99: 1.0})
    assert requests.num_seen([1, 2, 3, 99]) == 3.0, "one may not be asked, one has left"
    requests.miss([1])
    requests.glimpse({2: 0.0})
    assert requests.num_seen([1, 2]) == 0.0


def test_drafts_are_even_where_each_has_as_many() -> None:
    requests = known({1: 8, 2: 8})
    assert requests.evenness == 1.0, "nothing is known"
    requests.verify({1: 3, 2: 3, 99: 8})
    assert requests.evenness == pytest.approx(1.0)
    for _ in range(100):
        requests.miss([1])
    assert requests.evenness == pytest.approx(math.log1p(3.0) / (2 * math.log1p(1.5)), abs=1e-3)
    requests.stop(1)
    assert requests.evenness == pytest.approx(1.0), "one alone has what there is"


def test_shared_drafts_are_as_many_as_would_do_the_same_for_all_if_each_had_equally_many() -> None:
    requests = known({1: 8, 2: 8})
    requests.glimpse({1: 3.0, 2: 3.0})
    assert requests.num_seen([1, 2], is_shared=True) == pytest.approx(6.0)
    requests.glimpse({1: 3.0, 2: 0.0})
    assert requests.num_seen([1, 2], is_shared=True) == pytest.approx(2.0), "twice as fast in the geometric mean"
    assert requests.num_seen([2], is_shared=True) == 0.0
