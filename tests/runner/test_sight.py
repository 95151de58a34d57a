"""Looking ahead takes none but idle time."""

from __future__ import annotations

import pytest

from threefold.runner.sight import Sight


def seen_share(
    device_ms: float, host_ms: float, look_row_ms: float, num_rows: int, steps: int = 400
) -> tuple[float, float]:
    """(share of steps with a look, ms a step) where steps take as long as the slower of device and host."""
    sight = Sight()
    look_ms = looks = total_ms = 0.0
    for _ in range(steps):
        busy_ms = host_ms + look_ms
        wait_ms = max(device_ms - busy_ms, 0.0)
        total_ms += busy_ms + wait_ms
        sight.waited(wait_ms)
        look_ms = 0.0
        if sight.has_time(num_rows):
            looks += 1
            look_ms = look_row_ms * num_rows
            sight.looked(num_rows, look_ms)
    return looks / steps, total_ms / steps


def test_looks_at_every_step_where_the_host_waits_anyway() -> None:
    share, step_ms = seen_share(device_ms=1.0, host_ms=0.3, look_row_ms=0.01, num_rows=8)
    assert share > 0.9
    assert step_ms == pytest.approx(1.0)


def test_never_looks_where_the_host_is_what_steps_wait_for() -> None:
    share, step_ms = seen_share(device_ms=1.0, host_ms=1.2, look_row_ms=0.01, num_rows=8)
    assert share == 0.0
    assert step_ms == pytest.approx(1.2)


def test_a_look_that_takes_longer_than_guessed_is_noticed() -> None:
    share, step_ms = seen_share(device_ms=1.0, host_ms=0.5, look_row_ms=0.2, num_rows=8)
    assert share < 0.1
    assert step_ms < 1.1


def test_begins_only_when_a_wait_is_known() -> None:
    assert not Sight().has_time(1)
