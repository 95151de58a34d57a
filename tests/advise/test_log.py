import gzip
import json

import pytest

from threefold.advise.log import read_logs
from threefold.errors import ConfigError

CHAT = {
    "request": {"messages": [{"role": "user", "content": "hello"}], "temperature": 0.3},
    "response": {
        "choices": [{"message": {"content": "good day"}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        "created": 50,
    },
}


def test_bodies_with_answers(write_log):
    (one,) = read_logs([write_log([CHAT])]).requests
    assert (one.output, one.temperature, one.num_output_tokens, one.arrival_s) == ("good day", 0.3, 2, 50.0)


def test_a_broken_line_is_named_and_the_rest_goes_on(write_log):
    log = read_logs([write_log([CHAT, '{"request": ', "[1]", CHAT, {"foo": 1}, {"request": 3}])])
    assert len(log.requests) == 2
    assert [fault.line for fault in log.faults] == [2, 3, 5, 6]
    assert "is no JSON" in log.faults[0].reason
    assert "has foo" in log.faults[2].reason


@pytest.mark.parametrize("content", ["", "\n\n", "{]", "[]", "\x00\x01"])
def test_a_log_without_a_request_is_one_clear_line(tmp_path, content):
    path = tmp_path / "log.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"log\.jsonl") as caught:
        read_logs([path])
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_logs([tmp_path / "nothing.jsonl"])


def test_gzip_whole_and_cut(tmp_path):
    whole = gzip.compress(json.dumps(CHAT).encode())
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(whole)
    assert len(read_logs([path]).requests) == 1
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match="gzipped and damaged"):
        read_logs([path])


def test_requests_with_times_are_sorted_by_them(write_log):
    entries = [{"prompt": "a b", "arrival_s": at} for at in (3, 1, 2)]
    log = read_logs([write_log(entries)])
    assert [one.arrival_s for one in log.requests] == [1.0, 2.0, 3.0]
    assert log.has_times


def test_a_file_that_is_one_list(write_log):
    conversation = [
        {"from": "human", "value": "one"},
        {"from": "gpt", "value": "two"},
        {"from": "human", "value": "three"},
        {"from": "gpt", "value": "four"},
    ]
    log = read_logs([write_log([json.dumps([{"conversations": conversation}, {"conversations": []}])])])
    assert [len(one.messages) for one in log.requests] == [1, 3]
    assert [fault.line for fault in log.faults] == [2]


def test_batch_halves_are_joined(write_log):
    asked = write_log(
        [{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "say it"}}], "in.jsonl"
    )
    answered = write_log(
        [
            {"custom_id": "a", "response": {"status_code": 200, "body": {"choices": [{"text": "it"}]}}, "error": None},
            {"custom_id": "b", "response": None, "error": {"code": "x"}},
        ],
        "out.jsonl",
    )
    log = read_logs([asked, answered])
    assert [(one.prompt, one.output) for one in log.requests] == [("say it", "it")]
    assert len(log.faults) == 1
