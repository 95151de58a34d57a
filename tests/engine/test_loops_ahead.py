"""Loops are compiled by other processes where they were not compiled yet, and only there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from threefold.engine import loops_ahead
from threefold.engine.loops_ahead import JOBS, LoopsAhead


class FakeProcess:
    def __init__(self, code: int) -> None:
        self._code = code
        self.is_killed = False

    def wait(self) -> int:
        return self._code

    def kill(self) -> None:
        self.is_killed = True


class Started:
    """Processes that were started, by job."""

    def __init__(self, codes: dict[str, int]) -> None:
        self._codes = codes
        self.processes: dict[str, FakeProcess] = {}

    def __call__(self, job: str) -> FakeProcess:
        process = self.processes[job] = FakeProcess(self._codes.get(job, 0))
        return process


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch):
    def make(**codes: int) -> Started:
        started = Started(codes)
        monkeypatch.setattr(loops_ahead, "_started", started)
        return started

    return make


def compiled(stamp: Path, *jobs: str) -> None:
    with LoopsAhead(jobs, stamp) as loops:
        loops.wait()


def test_a_process_a_job_once(start, tmp_path: Path) -> None:
    first = start()
    compiled(tmp_path / "stamp", "outlook", "small")
    assert list(first.processes) == ["outlook", "small"]

    second = start()
    compiled(tmp_path / "stamp", "outlook", "small")
    assert not second.processes

    other = start()
    compiled(tmp_path / "stamp", "small")
    assert list(other.processes) == ["small"], "another engine needs other loops"


def test_new_sources_are_compiled_anew(start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    compiled(tmp_path / "stamp", "small")
    monkeypatch.setattr(loops_ahead.numba, "__version__", "another")
    again = start()
    compiled(tmp_path / "stamp", "small")
    assert list(again.processes) == ["small"]


def test_a_process_that_fails_is_started_again_the_next_time(start, tmp_path: Path) -> None:
    start(outlook=1)
    compiled(tmp_path / "stamp", "outlook", "small")
    again = start()
    compiled(tmp_path / "stamp", "outlook", "small")
    assert list(again.processes) == ["outlook", "small"]


def test_a_stamp_that_cannot_be_written_or_read_is_none(start, tmp_path: Path) -> None:
    started = start()
    compiled(tmp_path / "no" / "stamp", "small")
    (tmp_path / "odd").write_bytes(b"\xff\xfe")
    compiled(tmp_path / "odd", "small")
    assert list(started.processes) == ["small"]


def test_a_start_that_fails_leaves_no_process(start, tmp_path: Path) -> None:
    started = start()
    with pytest.raises(KeyError), LoopsAhead(["small"], tmp_path / "stamp"):
        raise KeyError
    assert started.processes["small"].is_killed
    assert not (tmp_path / "stamp").exists()


@pytest.mark.parametrize("job", JOBS)
def test_each_job_runs_in_a_process_without_tensors(job: str) -> None:
    program = (
        f"import sys; from threefold.engine.loops_ahead import JOBS; JOBS[{job!r}](); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
