import pytest

from threefold.advise.result import LoadResult
from threefold.step import TokenDelta


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
    result = LoadResult(duration_s=3.0)
    result.take_step(2.0, 4, [TokenDelta(1, (5, 6)), TokenDelta(2, (7,))], is_full=True)
    result.take_step(1.0, 1, [TokenDelta(1, (8,))], is_full=False)
    assert result.mean_running == pytest.approx(3.0)
    assert result.output_rate == 1.5


def test_nothing_came():
    assert (LoadResult().mean_running, LoadResult().output_rate) == (0.0, 0.0)
