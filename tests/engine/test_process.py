from __future__ import annotations

import asyncio
import stat
import tempfile
from pathlib import Path

import pytest

from threefold.engine import wire
from threefold.engine.process import EngineProcess, describe_exit
from threefold.errors import ConfigError, EngineDeadError


async def test_messages_go_both_ways_until_it_is_stopped(socket_home: Path) -> None:
    messages: list[wire.FromEngine] = []
    came = asyncio.Event()

    def on_message(message: wire.FromEngine) -> None:
        messages.append(message)
        came.set()

    process = EngineProcess("fake_engine:build", {"num_blocks": 77}, on_message)
    (folder,) = socket_home.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    await came.wait()
    assert isinstance(messages[0], wire.Ready)
    assert messages[0].info.num_blocks == 77
    came.clear()
    process.send(wire.GetStats(5))
    await came.wait()
    assert isinstance(messages[1], wire.Stats)
    assert messages[1].ticket == 5
    await process.stop(10.0)
    assert await process.exit == 0
    with pytest.raises(EngineDeadError):
        process.send(wire.GetStats(6))
    await process.stop(10.0)


async def test_a_process_that_does_not_listen_is_ended_by_force(socket_home: Path) -> None:
    process = EngineProcess("fake_engine:build_forever", {}, lambda message: None)
    await process.stop(0.1)
    assert await process.exit == -9


async def test_a_path_too_long_for_a_socket_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(ConfigError, match="set TMPDIR to a shorter one"):
        EngineProcess("fake_engine:build", {}, lambda message: None)
    assert not list(deep.iterdir())


@pytest.mark.parametrize(
    ("code", "words"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "signal SIGKILL"), (-99, "signal 99")]
)
def test_an_exit_code_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words
