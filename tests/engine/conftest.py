"""Engine processes over the FakeExecutor, and a look at what they leave behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from threefold.engine.client import EngineClient
from threefold.testing.byte_tokenizer import ByteTokenizer

HERE = Path(__file__).parent
Start = Callable[..., Awaitable[EngineClient]]


@pytest.fixture
def socket_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where socket folders appear; empty again when the test is over."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        path = [str(HERE), str(HERE.parent.parent / "src"), os.environ.get("PYTHONPATH", "")]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
        yield Path(folder)
        assert not list(Path(folder).iterdir())


@pytest.fixture
async def start_engine(socket_home: Path) -> AsyncIterator[Start]:
    """Starts engine processes with a factory of fake_engine.py; ends them with the test."""
    clients: list[EngineClient] = []

    async def start(factory: str = "build", **config: Any) -> EngineClient:
        client = await EngineClient.start(f"fake_engine:{factory}", config, lambda info: ByteTokenizer())
        clients.append(client)
        return client

    yield start
    for client in clients:
        await client.close()
