"""When a first token would come, reckoned by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.schedule.forecast import FIRST_ANSWER_TOKENS, AnswerLengths, Ending, Forecast, Job, Room, forecast


def room(num_decoding: int, num_in_line: float) -> Room:
    """A step feeds 100 prompt tokens in 10 ms, whoever runs; one with fewer is as long."""
    return Room(100, 10.0)


def job(num_tokens: int, *, blocks: int = 0, held: int = 0, answer: float = 50.0, has_row: bool = False) -> Job:
    return Job(num_tokens, blocks, held, answer, has_row)


def run(jobs: Sequence[Job], endings: Sequence[Ending] = (), *, max_rows: int = 100, free: int = 1000) -> Forecast:
    fed = sum(one.has_row for one in jobs)
    num = len(endings)
    return forecast(
        endings, jobs, num_decoding=num, num_rows=num + fed, max_rows=max_rows, num_free_blocks=free, room=room
    )


def test_alone_it_waits_for_nobody() -> None:
    assert run([job(250)]) == Forecast(0.0, pytest.approx(35.0))


def test_prompts_before_it_are_fed_first() -> None:
    found = run([job(200, has_row=True), job(300), job(100)])
    assert found.wait_ms == pytest.approx(50.0)
    assert found.first_token_ms == pytest.approx(70.0)


def test_without_a_row_it_waits_for_the_first_answer_to_end() -> None:
    endings = [Ending(700.0, 1), Ending(300.0, 1)]
    assert run([job(100)], endings, max_rows=2).wait_ms == pytest.approx(300.0)
    assert run([job(100), job(100)], endings, max_rows=2).wait_ms == pytest.approx(700.0)


def test_an_answer_that_was_let_in_before_may_be_the_one_that_ends() -> None:
    found = run([job(100, answer=5.0), job(100)], [Ending(5000.0, 1)], max_rows=2)
    assert found.wait_ms == pytest.approx(10.0 + 5 * 10.0)


def test_without_blocks_it_waits_for_those_of_an_answer() -> None:
    found = run([job(100, blocks=10)], [Ending(300.0, 2), Ending(800.0, 20)], free=4)
    assert found.wait_ms == pytest.approx(800.0)


def test_when_nothing_will_end_it_is_fed_in_the_end() -> None:
    assert run([job(100, blocks=50)], free=4).wait_ms == 0.0


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=20), st.integers(1, 8), st.integers(0, 8))
def test_one_more_before_it_never_makes_it_earlier(prompts: list[int], max_rows: int, num_running: int) -> None:
    endings = [Ending(100.0 * place, 1) for place in range(1, num_running + 1)]
    fewer = run([job(size) for size in prompts], endings, max_rows=max_rows)
    more = run([job(77), *[job(size) for size in prompts]], endings, max_rows=max_rows)
    assert more.first_token_ms >= fewer.first_token_ms - 1e-6
    assert more.wait_ms >= fewer.wait_ms - 1e-6


def test_before_any_answer_ended_a_length_is_assumed() -> None:
    lengths = AnswerLengths()
    assert lengths.rest(0, 1000, 0) == FIRST_ANSWER_TOKENS
    assert lengths.rest(0, 20, 0) == 20


def test_answers_end_like_those_that_were_longer() -> None:
    lengths = AnswerLengths()
    for length in (10, 20, 30, 40):
        lengths.observe(length)
    assert lengths.mean_tokens == 25
    assert {lengths.rest(25, 1000, place) for place in range(8)} == {5, 15}
    assert sorted({lengths.rest(0, 1000, place) for place in range(20)}) == [10, 20, 30, 40]
    assert lengths.rest(0, 7, 3) == 7
    assert lengths.rest(99, 1000, 0) == 25, "longer than any: who knows"


def test_old_lengths_are_forgotten() -> None:
    lengths = AnswerLengths()
    for length in [1000] * 200 + [10] * 64:
        lengths.observe(length)
    assert lengths.mean_tokens == 10
    assert lengths.rest(0, 5000, 7) == 10
