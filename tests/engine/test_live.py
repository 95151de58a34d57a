from __future__ import annotations

import pytest

from threefold.engine.live import LiveAnswers
from threefold.engine.stream import AnswerStream
from threefold.engine.wire import StepOutput
from threefold.errors import EngineDeadError, RequestFailedError
from threefold.request import FinishReason, SamplingParams
from threefold.step import TokenDelta
from threefold.testing.byte_tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
LENGTH = FinishReason.LENGTH


class Engine:
    """Takes note of what it is told."""

    def __init__(self) -> None:
        self.aborted: list[int] = []
        self.num_ended = 0
        self.live = LiveAnswers(self.aborted.extend, self.count_end)

    def count_end(self) -> None:
        self.num_ended += 1

    def open(self, answer_ids: list[int], *, stop: tuple[str, ...] = ()) -> AnswerStream:
        return self.live.open("a", answer_ids, TOKENIZER, SamplingParams(stop=stop))

    def step(self, tokens: dict[int, bytes], *deltas: TokenDelta) -> None:
        self.live.on_step(StepOutput(list(tokens), [list(some) for some in tokens.values()], [], [], list(deltas)))


async def test_tokens_go_to_those_who_asked() -> None:
    engine = Engine()
    one, two = engine.open([1]), engine.open([2, 3])
    engine.step({1: b"a", 3: b"b", 99: b"c"}, TokenDelta(2, [100], LENGTH), TokenDelta(98, [100], LENGTH))
    assert (await anext(one)).text == "a"
    assert [((piece := await anext(two)).index, piece.text) for _ in range(2)] == [(1, "b"), (0, "d")]
    assert engine.num_ended == 1
    assert len(engine.live) == 2


async def test_it_is_idle_when_all_have_ended() -> None:
    engine = Engine()
    assert engine.live.is_idle.is_set()
    stream = engine.open([1])
    assert not engine.live.is_idle.is_set()
    engine.step({}, TokenDelta(1, [100], LENGTH))
    assert engine.live.is_idle.is_set()
    assert engine.aborted == []
    await stream.aclose()


async def test_a_stop_string_is_told_to_the_engine_once() -> None:
    engine = Engine()
    stream = engine.open([1], stop=("bc",))
    engine.step({1: b"abcd"})
    engine.step({1: b"ef"})
    assert [piece.text async for piece in stream] == ["a"]
    assert engine.aborted == [1]


async def test_a_stop_string_in_the_last_delta_needs_no_abort() -> None:
    engine = Engine()
    stream = engine.open([1], stop=("bc",))
    engine.step({}, TokenDelta(1, list(b"abc"), LENGTH))
    assert [(piece.text, piece.finish_reason) async for piece in stream] == [("a", FinishReason.STOP)]
    assert engine.aborted == []


async def test_one_answers_error_ends_its_request_with_all_answers() -> None:
    engine = Engine()
    failed, other = engine.open([1, 2]), engine.open([3])
    engine.step({2: b"x"}, TokenDelta(1, [], FinishReason.ERROR, error="no"))
    assert (await anext(failed)).text == "x"
    with pytest.raises(RequestFailedError, match="no"):
        await anext(failed)
    assert engine.aborted == [1, 2]
    assert len(engine.live) == 1
    await other.aclose()
    assert engine.aborted == [1, 2, 3]


async def test_leaving_a_stream_forgets_its_open_answers() -> None:
    engine = Engine()
    stream = engine.open([1, 2])
    engine.step({}, TokenDelta(1, [100], LENGTH))
    del stream
    assert engine.aborted == [2]
    assert len(engine.live) == 0


async def test_all_can_be_ended_with_what_they_have() -> None:
    engine = Engine()
    stream = engine.open([1, 2], stop=("bc",))
    engine.step({1: b"ab"})
    assert engine.live.abort_all() == 2
    pieces = {piece.index: (piece.text, piece.finish_reason) async for piece in stream}
    assert pieces == {0: ("ab", FinishReason.ABORT), 1: ("", FinishReason.ABORT)}


async def test_each_reader_gets_an_error_of_its_own() -> None:
    engine = Engine()
    streams = [engine.open([number]) for number in range(2)]
    engine.live.fail_all(lambda: EngineDeadError("gone"))
    raised = []
    for stream in streams:
        with pytest.raises(EngineDeadError) as caught:
            await anext(stream)
        raised.append(caught.value)
    assert raised[0] is not raised[1]
