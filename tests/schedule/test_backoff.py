from __future__ import annotations

from threefold.schedule.backoff import RECOVERY_STEPS, Backoff


def test_limits_give_way_at_once_and_come_back_slowly() -> None:
    backoff = Backoff(max_tokens=640, max_rows=64)
    backoff.shrink(num_tokens=100, num_rows=8)
    assert (backoff.num_tokens, backoff.num_rows) == (100, 8)
    backoff.recover()
    assert (backoff.num_tokens, backoff.num_rows) == (110, 9)
    for _ in range(RECOVERY_STEPS):
        backoff.recover()
    assert (backoff.num_tokens, backoff.num_rows) == (640, 64)
    backoff.recover()
    assert (backoff.num_tokens, backoff.num_rows) == (640, 64)


def test_every_running_request_keeps_its_token() -> None:
    backoff = Backoff(max_tokens=64, max_rows=64)
    backoff.shrink(num_tokens=3, num_rows=32)
    assert (backoff.num_tokens, backoff.num_rows) == (32, 32)
    backoff.shrink(num_tokens=0, num_rows=0)
    assert (backoff.num_tokens, backoff.num_rows) == (1, 1)


def test_limits_never_rise_by_shrinking() -> None:
    backoff = Backoff(max_tokens=64, max_rows=8)
    backoff.shrink(num_tokens=10, num_rows=2)
    backoff.shrink(num_tokens=50, num_rows=5)
    assert (backoff.num_tokens, backoff.num_rows) == (10, 2)
