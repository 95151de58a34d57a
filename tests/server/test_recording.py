from __future__ import annotations

import json

import pytest

from threefold.errors import ConfigError
from threefold.server.recording import FileRecorder, block_hashes, numbered_pairs

ASK = {"messages": [{"role": "user", "content": "my secret"}], "max_tokens": 20, "temperature": 0.5}


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def recorded(client, path, content):
    from threefold.config import ServerConfig
    from threefold.server.app import create_app

    recorder = FileRecorder(path, content)
    return create_app(client, ServerConfig(), recorder=recorder), recorder


async def ask(app, **changes):
    import httpx

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x") as http:
        return await http.post("/v1/chat/completions", json={**ASK, **changes})


@pytest.fixture(params=["text", "hashes", "none"])
def content(request):
    return request.param


async def test_a_line_an_answer(client, tmp_path, content):
    path = tmp_path / "record.jsonl"
    app, _ = recorded(client, path, content)
    async with app.router.lifespan_context(app):
        reply = await ask(app, n=2)
        await ask(app, stream=True)
    lines = lines_of(path)
    assert reply.status_code == 200
    first = lines[0]
    assert (first["output_tokens"], first["temperature"], first["n"]) == (20, 0.5, 2)
    assert first["arrival_s"] > 1e9
    assert 0 <= first["ttft_ms"] <= first["e2e_ms"]
    assert ("prompt_token_ids" in first) == (content == "text")
    assert ("pairs" in first) == ("block_hashes" in first) == (content == "hashes")
    assert "secret" not in path.read_text()


async def test_refused_calls_leave_nothing(client, tmp_path):
    path = tmp_path / "record.jsonl"
    app, _ = recorded(client, path, "text")
    client.is_full = True
    async with app.router.lifespan_context(app):
        assert (await ask(app)).status_code == 503
    assert path.read_text() == ""


async def test_a_full_disk_ends_the_recording_and_no_request(client, tmp_path, caplog):
    app, recorder = recorded(client, tmp_path / "record.jsonl", "none")

    class Full:
        def write(self, line):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    recorder._file = Full()
    async with app.router.lifespan_context(app):
        assert (await ask(app)).status_code == 200
        assert (await ask(app)).status_code == 200
    assert [record.getMessage() for record in caplog.records if "recording ends here" in record.getMessage()]


def test_a_file_that_cannot_be_opened(tmp_path):
    with pytest.raises(ConfigError, match="--record"):
        FileRecorder(tmp_path / "no" / "such" / "folder", "none")


def test_hashes_share_what_prefixes_share():
    key = b"k" * 32
    a, b = block_hashes([*range(48)], key, ""), block_hashes([*range(32), *range(100, 116)], key, "")
    assert a[:2] == b[:2]
    assert a[2] != b[2]
    assert block_hashes([*range(48)], key, "other salt")[0] != a[0]
    assert block_hashes([*range(48)], b"q" * 32, "")[0] != a[0]
    assert block_hashes([*range(15)], key, "") == []


def test_pairs_are_numbered_by_first_occurrence():
    assert numbered_pairs([7, 8, 7, 8, 9]) == [0, 1, 2, 1, 3]
    assert numbered_pairs([]) == []
    assert numbered_pairs([5, 6, 5]) == numbered_pairs([70, 1, 70]), "what the tokens are is not told"
