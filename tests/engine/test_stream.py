from __future__ import annotations

import asyncio

import pytest

from threefold.engine.outputs import OutputDelta
from threefold.engine.stream import AnswerStream
from threefold.errors import EngineDeadError, RequestFailedError
from threefold.request import FinishReason


class Closed:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def piece(index: int, text: str, finish_reason: FinishReason | None = None) -> OutputDelta:
    return OutputDelta(index, text, [ord(char) for char in text], finish_reason=finish_reason)


async def test_pieces_come_until_every_answer_has_ended() -> None:
    closed = Closed()
    stream = AnswerStream("a", [8, 9], closed)
    stream.put(piece(1, "x"))
    stream.put(piece(0, "y", FinishReason.STOP))
    assert await anext(stream) == piece(1, "x")
    assert await anext(stream) == piece(0, "y", FinishReason.STOP)
    asyncio.get_running_loop().call_soon(stream.put, piece(1, "z", FinishReason.LENGTH))
    assert await anext(stream) == piece(1, "z", FinishReason.LENGTH)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await stream.aclose()
    del stream
    assert closed.count == 0


async def test_what_waits_is_one_piece_an_answer() -> None:
    stream = AnswerStream("a", [8, 9], Closed())
    for _ in range(100):
        stream.put(piece(0, "x"))
        stream.put(piece(1, "y"))
    assert (await anext(stream)).text == "x" * 100
    assert (await anext(stream)).text == "y" * 100


async def test_an_error_comes_after_the_pieces_before_it() -> None:
    closed = Closed()
    stream = AnswerStream("a", [8], closed)
    stream.put(piece(0, "x"))
    stream.fail(RequestFailedError("no"))
    stream.fail(EngineDeadError("too late"))
    assert (await anext(stream)).text == "x"
    with pytest.raises(RequestFailedError, match="no"):
        await anext(stream)
    await stream.aclose()
    assert closed.count == 0


async def test_an_error_wakes_the_reader() -> None:
    stream = AnswerStream("a", [8], Closed())
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    stream.fail(EngineDeadError("gone"))
    with pytest.raises(EngineDeadError):
        await reader


async def test_closing_ends_the_request_once() -> None:
    closed = Closed()
    stream = AnswerStream("a", [8], closed)
    stream.put(piece(0, "x"))
    await stream.aclose()
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    del stream
    assert closed.count == 1


async def test_closing_wakes_a_reader_elsewhere() -> None:
    stream = AnswerStream("a", [8], Closed())
    reader = asyncio.ensure_future(anext(stream, None))
    await asyncio.sleep(0)
    await stream.aclose()
    assert await reader is None


async def test_a_cancelled_reader_ends_the_request() -> None:
    closed = Closed()
    stream = AnswerStream("a", [8], closed)
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert closed.count == 1


def test_a_stream_that_nobody_holds_ends_the_request() -> None:
    closed = Closed()
    stream = AnswerStream("a", [8], closed)
    del stream
    assert closed.count == 1
