from __future__ import annotations

import json
import logging

from threefold.server.request_log import JsonFormatter

ASK = {"messages": [{"role": "user", "content": "my secret"}], "max_tokens": 2}


async def test_a_request_is_one_line_without_its_text(serve, caplog):
    with caplog.at_level(logging.INFO, logger="threefold.requests"):
        async with serve(enable_log_requests=True) as served:
            reply = await served.http.post("/v1/chat/completions", json=ASK)
    (record,) = [record for record in caplog.records if record.name == "threefold.requests"]
    assert "secret" not in record.getMessage()
    assert f"request_id={reply.json()['id']}" in record.getMessage()
    line = json.loads(JsonFormatter().format(record))
    assert (line["completion_tokens"], line["finish_reason"], line["level"]) == (2, "length", "info")


async def test_nothing_is_logged_unless_asked(serve, caplog):
    with caplog.at_level(logging.INFO, logger="threefold.requests"):
        async with serve() as served:
            await served.http.post("/v1/chat/completions", json=ASK)
    assert not [record for record in caplog.records if record.name == "threefold.requests"]


def test_plain_records_and_exceptions_become_json():
    try:
        raise ValueError("x")
    except ValueError as error:
        record = logging.LogRecord("n", logging.ERROR, "p", 1, "said %s", ("it",), (ValueError, error, None))
    line = json.loads(JsonFormatter().format(record))
    assert line["message"] == "said it"
    assert "ValueError: x" in line["exception"]
