"""A start's parts are timed and announced."""

from __future__ import annotations

import threading

import pytest

from threefold.engine import start_clock
from threefold.engine.start_clock import StartClock


def test_a_part_that_lasts_is_announced_while_it_lasts() -> None:
    is_said = threading.Event()
    said: list[str] = []

    def say(what: str) -> None:
        said.append(what)
        is_said.set()

    clock = StartClock(say=say, patience_s=0.0)
    with clock.part("weights"):
        assert is_said.wait(timeout=30)
    assert said == ["weights"]


def test_a_short_part_is_not_announced_and_leaves_no_timer() -> None:
    def say(what: str) -> None:
        pytest.fail(f"{what} was announced")

    clock = StartClock(say=say, patience_s=600.0)
    with clock.part("weights"):
        waiting = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
        assert waiting
        assert all(thread.daemon for thread in waiting), "no start is held up by one"
    for thread in waiting:
        thread.join(timeout=30)
        assert not thread.is_alive()


def test_the_reason_names_parts_once_and_their_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = iter([0.0, 2.0, 10.0, 11.0, 20.0, 20.5])
    monkeypatch.setattr(start_clock.time, "perf_counter", lambda: next(now_s))
    clock = StartClock(before_s=4.0, patience_s=600.0)
    for _ in range(2):
        with clock.part("weights"):
            pass
    with pytest.raises(KeyError), clock.part("graphs"):
        raise KeyError
    assert str(clock.reason()) == "start 7.5 s: imports 4.0, weights 3.0, graphs 0.5"


def test_what_took_no_time_is_not_named() -> None:
    clock = StartClock(before_s=4.0, patience_s=600.0)
    with clock.part("weights"):
        pass
    assert str(clock.reason()) == "start 4.0 s: imports 4.0", "what took no time is not named"


def test_a_start_in_a_process_that_ran_before_says_nothing_of_imports() -> None:
    clock = StartClock()
    with clock.part("weights"):
        pass
    assert "imports" not in str(clock.reason())
