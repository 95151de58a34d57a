import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.bench.outcome import Outcome
from threefold.bench.sse import StreamReader, error_message


def frame(payload: dict) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def content(text: str) -> bytes:
    return frame({"choices": [{"index": 0, "delta": {"content": text}}]})


END = frame({"choices": [{"delta": {}, "finish_reason": "stop"}]})
USAGE = frame({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}})
DONE = b"data: [DONE]\n\n"
STREAM = (
    frame({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    + content(" zwölf")
    + b": keep-alive\n\n"
    + content(" Boxkämpfer")
    + END
    + USAGE
    + DONE
)


def read(*pieces: bytes) -> Outcome:
    reader = StreamReader(Outcome())
    for piece in pieces:
        reader.feed(piece)
    reader.finish()
    return reader.outcome


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_frames_cut_anywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    for stream in (STREAM, STREAM.replace(b"\n", b"\r\n")):
        outcome = read(*(stream[a:b] for a, b in zip(edges, [*edges[1:], len(stream)], strict=True)))
        assert outcome.error == ""
        assert len(outcome.chunk_times_s) == 2
        assert (outcome.prompt_tokens, outcome.output_tokens) == (3, 4)
        assert outcome.finish_reason == "stop"


@pytest.mark.parametrize(
    "delta",
    [{"reasoning": "hm"}, {"reasoning_content": "hm"}, {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}],
)
def test_output_of_other_kinds_counts(delta: dict) -> None:
    assert len(read(frame({"choices": [{"delta": delta}]}), END, DONE).chunk_times_s) == 1


def test_pieces_are_counted_when_the_server_does_not_count() -> None:
    outcome = read(content("a"), content("b"), END, DONE)
    assert outcome.output_tokens == 2
    assert not outcome.is_counted


def test_tokens_without_text_are_still_timed() -> None:
    empty = frame({"choices": [{"text": ""}]})
    outcome = read(empty, empty, frame({"choices": [{"text": "", "finish_reason": "length"}]}), USAGE, DONE)
    assert outcome.error == ""
    assert len(outcome.chunk_times_s) == 3


def test_forms_of_a_frame() -> None:
    outcome = read(b"event: x\ndata:" + content("a")[6:], b"id: 1\n" + content("b"), END, DONE)
    assert len(outcome.chunk_times_s) == 2


def test_last_frame_without_its_blank_line() -> None:
    assert read(content("a"), END, DONE.strip()).error == ""


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([], "the stream ended before the answer did"),
        ([content("a")], "the stream ended before the answer did"),
        ([DONE], "the answer holds no output"),
        ([frame({"error": {"message": "no\nluck"}}), DONE], "error in the stream: no luck"),
        ([frame({"error": "flat"}), DONE], "error in the stream: flat"),
        ([content("a"), b"data: {broken\n\n", END, DONE], "a frame is no chunk of a completion"),
        ([b'data: {"choices": 5}\n\n', DONE], "a frame is no chunk of a completion"),
        ([b'data: {"choices": [{"text": "\xff"}]}\n\n', DONE], "a frame is no chunk of a completion"),
    ],
)
def test_broken_streams(pieces: list[bytes], reason: str) -> None:
    assert read(*pieces).error.startswith(reason)


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_any_bytes_give_an_outcome(pieces: list[bytes]) -> None:
    assert read(*pieces).error


def test_error_messages_are_short_lines() -> None:
    assert error_message({"message": "a\n b"}) == "a b"
    assert error_message(None) == "None"
    assert len(error_message("x" * 1000)) == 200
