"""Who is next."""

from __future__ import annotations

import pytest

from threefold.request import Request, SamplingParams
from threefold.schedule.queue import WaitingQueue


def make(request_id: int, arrival_s: float, priority: int = 0) -> Request:
    return Request(
        request_id,
        [1],
        SamplingParams(),
        max_total_tokens=10,
        end_token_ids=frozenset(),
        arrival_s=arrival_s,
        priority=priority,
    )


def drain(queue: WaitingQueue) -> list[int]:
    order = []
    while (request := queue.peek()) is not None:
        order.append(request.request_id)
        assert queue.remove(request.request_id) is request
    return order


@pytest.mark.parametrize(("policy", "expected"), [("fcfs", [2, 0, 3, 1]), ("priority", [1, 2, 3, 0])])
def test_order(policy: str, expected: list[int]) -> None:
    queue = WaitingQueue(policy)
    for request in (make(0, 5.0, 2), make(1, 9.0, -1), make(2, 1.0, 0), make(3, 5.0, 0)):
        queue.push(request)

    assert len(queue) == 4
    assert drain(queue) == expected
    assert len(queue) == 0


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_one_that_comes_back_is_first_among_its_equals(policy: str) -> None:
    queue = WaitingQueue(policy)
    for request_id in range(3):
        queue.push(make(request_id, float(request_id)))
    preempted = queue.remove(0)
    assert preempted is not None
    queue.push(preempted)

    assert drain(queue) == [0, 1, 2]


def test_the_removed_are_passed_over() -> None:
    queue = WaitingQueue("fcfs")
    for request_id in range(4):
        queue.push(make(request_id, 0.0))

    assert queue.remove(0) is not None
    assert queue.remove(2) is not None
    assert queue.remove(2) is None
    assert queue.remove(77) is None
    assert drain(queue) == [1, 3]


def test_a_storm_of_aborts_leaves_nothing_behind() -> None:
    queue = WaitingQueue("fcfs")
    queue.push(make(0, 0.0))
    for request_id in range(1, 5000):
        queue.push(make(request_id, 1.0))
        queue.remove(request_id)

    assert len(queue._heap) < 100
    assert drain(queue) == [0]


@pytest.mark.parametrize(("policy", "expected"), [("fcfs", [2, 0]), ("priority", [1, 2])])
def test_those_before_one_that_comes(policy: str, expected: list[int]) -> None:
    queue = WaitingQueue(policy)
    for request in (make(0, 5.0, 2), make(1, 9.0, -1), make(2, 1.0, 0), make(3, 7.0, 1)):
        queue.push(request)

    assert [one.request_id for one in queue.before(make(4, 6.0, 0))] == expected
    assert len(queue) == 4
