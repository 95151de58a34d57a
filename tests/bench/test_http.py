"""The real server and the real engine process with the fake behind them."""

import pytest

from threefold.bench import http
from threefold.bench.alone_options import HttpOptions
from threefold.bench.fake_engine import FakeEngineOptions
from threefold.errors import EngineDeadError


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_every_token_comes_through(endpoint: str) -> None:
    result = http.bench_http(HttpOptions(streams=8, requests=20, max_tokens=30, endpoint=endpoint))
    assert (result["completed"], result["failed"]) == (20, 0)
    assert result["total_output_tokens"] == 600
    assert result["tokens_counted_by"] == "server"
    assert result["chunk_throughput"] > 0


def test_a_server_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http.msgspec.json, "encode", lambda options: b"[]")
    with pytest.raises(EngineDeadError, match="ended before it was ready"), http.fake_server(FakeEngineOptions()):
        pass
