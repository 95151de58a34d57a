"""The rows' order and their one way out."""

from __future__ import annotations

import pytest

from threefold.cache.manager import CacheManager
from threefold.draft.controller import FixedDrafts
from threefold.request import Request, SamplingParams
from threefold.schedule.running import Row, RunningBatch


def make_row(request_id: int, priority: int, max_draft_tokens: int | None = None) -> Row:
    params = SamplingParams(max_draft_tokens=max_draft_tokens)
    request = Request(request_id, [1], params, max_total_tokens=9, end_token_ids=frozenset())
    return Row(request, (priority, 0.0, request_id), num_slots=0)


def test_rows_stand_by_key_whatever_the_order_they_come_in() -> None:
    running = RunningBatch(CacheManager(4, 4), FixedDrafts(2))
    for request_id, priority in enumerate([2, 0, 1, 0]):
        running.enter(make_row(request_id, priority))

    assert [row.request.request_id for row in running.rows] == [1, 3, 2, 0]
    assert len(running) == 4


def test_leaving_frees_at_once_and_is_told_once() -> None:
    cache, policy = CacheManager(4, 4), FixedDrafts(2)
    running = RunningBatch(cache, policy)
    rows = [make_row(request_id, 0) for request_id in range(3)]
    for row in rows:
        running.enter(row)
        cache.allocate(row.request, 4)
    running.leave(rows[0])
    running.leave(rows[2])

    assert cache.num_held_blocks == 1
    assert running.by_id == {1: rows[1]}
    running.sweep()
    assert running.rows == [rows[1]]
    assert policy.appetites([1]) == {1: 2}
    with pytest.raises(KeyError):
        policy.appetites([0])
    assert running.take_dropped() == [0, 2]
    assert running.take_dropped() == []


@pytest.mark.parametrize(
    ("max_draft_tokens", "num_committed", "expected"), [(None, 0, 7), (None, 1, 6), (3, 0, 3), (0, 0, 0), (None, 9, 0)]
)
def test_a_draft_is_of_use_up_to_the_end(max_draft_tokens: int | None, num_committed: int, expected: int) -> None:
    """One of nine tokens is known, and a step says one token itself."""
    assert make_row(0, 0, max_draft_tokens).useful_draft(num_committed) == expected


def test_the_limit_of_drafts_is_the_requests_or_all_its_room() -> None:
    assert make_row(0, 0, 3).max_draft == 3
    assert make_row(0, 0, 0).max_draft == 0
    assert make_row(0, 0).max_draft == 9
