import pytest

from threefold.advise.result import LoadResult


def test_answers_come_to_latencies():
    result = LoadResult(duration_s=2.0)
    result.take_answer(1.0, 1.5, 2.5, 11, 7)
    result.take_answer(1.0, 1.25, 1.25, 1)
    assert (result.num_done, result.output_tokens, result.prompt_tokens) == (2, 12, 7)
    assert result.ttft_ms == [500.0, 250.0]
    assert result.e2e_ms == [1500.0, 250.0]
    assert result.tpot_ms == [100.0], "an answer of one token has no time per further token"
    assert result.output_rate == 6.0


def test_steps_come_to_load_and_to_the_rate_while_all_were_busy():
    """Of an answer that goes on, as much counts as of its time: what it waited for its prompt is not lost."""
    result = LoadResult(duration_s=3.0)
    result.take_step(2.0, 4, 12.0, is_full=True)
    result.take_answer(10.0, 11.0, 12.0, 3)
    result.take_step(1.0, 1, 13.0, is_full=False)
    result.take_answer(11.0, 12.5, 13.0, 8)
    assert result.mean_running == pytest.approx(3.0)
    assert result.output_rate == pytest.approx((3 + 4) / 2.0)


def test_the_rate_does_not_depend_on_whether_users_walk_in_step():
    """Four users, 2 tokens a second each, in answers of 4 s; all begin at once, or one second after the other."""
    tokens = []
    for lag_s in (0.0, 1.0):
        result = LoadResult(duration_s=40.0)
        result.take_step(20.0, 4, 20.0, is_full=True)
        for user in range(4):
            for turn in range(5):
                start_s = lag_s * user + 4.0 * turn
                result.take_answer(start_s, start_s + 3.0, start_s + 4.0, 8)
        tokens.append(result.full_tokens)
    assert tokens == [2 * 4 * 20, 2 * (20 + 19 + 18 + 17)]


def test_nothing_came():
    assert (LoadResult().mean_running, LoadResult().output_rate) == (0.0, 0.0)
