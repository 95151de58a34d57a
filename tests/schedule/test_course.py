"""Rows that go on token by token, reckoned all at once."""

from __future__ import annotations

from threefold.cache.manager import CacheManager
from threefold.request import Request, SamplingParams
from threefold.schedule.course import Course
from threefold.schedule.running import Row

BLOCK_SIZE = 4


def row_of(cache: CacheManager, request_id: int, num_tokens: int, max_total_tokens: int = 100) -> Row:
    request = Request(
        request_id,
        [1] * num_tokens,
        SamplingParams(max_tokens=None),
        max_total_tokens=max_total_tokens,
        end_token_ids=frozenset(),
    )
    blocks = cache.allocate(request, num_tokens)
    assert blocks is not None
    return Row(request, (0, request_id), len(blocks) * BLOCK_SIZE)


def test_each_row_is_fed_the_token_on_its_way_and_gets_a_block_when_it_needs_one() -> None:
    cache = CacheManager(16, BLOCK_SIZE)
    rows = [row_of(cache, 7, 4), row_of(cache, 8, 3)]
    course = Course(rows, [4, 3])

    first, ending = course.advance(cache)
    assert (first.request_ids, first.num_computed, first.num_new) == ([7, 8], [4, 3], [1, 1])
    assert first.new_blocks == [(rows[0].request.block_ids[1],), ()]
    assert (first.max_draft, first.wants_token, first.next_draft) == ([0, 0], [True, True], [0, 0])
    assert ending == []
    second, _ = course.advance(cache)
    assert second.num_computed == [5, 4]
    assert second.new_blocks == [(), (rows[1].request.block_ids[1],)]
    assert [row.num_slots for row in rows] == [8, 8]
    assert first.num_computed == [4, 3], "a plan that was made stays as it was"


def test_the_last_token_by_length_is_foreseen_and_its_row_leaves_behind_it() -> None:
    cache = CacheManager(16, BLOCK_SIZE)
    course = Course([row_of(cache, 0, 4, 7), row_of(cache, 1, 4)], [4, 4])

    assert not course.end()
    assert course.advance(cache)[1] == [], "token 6 is not the last of 7"
    assert not course.end()
    columns, ending = course.advance(cache)
    assert (columns.request_ids, ending) == ([0, 1], [0])
    assert course.end()
    columns, ending = course.advance(cache)
    assert (columns.request_ids, columns.num_computed, ending) == ([1], [6], [])


def test_rows_leave_and_others_join_behind_them() -> None:
    cache = CacheManager(16, BLOCK_SIZE)
    rows = [row_of(cache, request_id, 4) for request_id in range(4)]
    course = Course(rows[:3], [4, 4, 4])
    course.leave([True, False, True])
    course.join(Course([rows[3]], [9]))
    course.join(Course())

    assert course.rows == [rows[0], rows[2], rows[3]]
    columns, _ = course.advance(cache)
    assert (columns.request_ids, columns.num_computed) == ([0, 2, 3], [4, 4, 9])


def test_nobody_is_a_course_too() -> None:
    course = Course()
    assert not course.end()
    columns, ending = course.advance(CacheManager(4, BLOCK_SIZE))
    assert (list(columns.request_ids), ending, len(course)) == ([], [], 0)
