"""What the HTTP process and the engine process say to each other: small typed messages, MessagePack, never pickle.

    to the engine    AddRequest  Abort  GetStats  ResetPrefixCache  Shutdown
    from the engine  Ready | StartFailed, then StepOutput …  RequestRejected  Stats  PrefixCacheReset  EngineFault

A message is decoded into exactly one of these types or refused, and none is larger than MAX_MESSAGE_BYTES. All that a
step brought goes in one message, as columns: most rows of most steps have a token and nothing else to say.
"""

from __future__ import annotations

from typing import Any

import msgspec

from threefold.engine.outputs import EngineInfo
from threefold.errors import InvalidRequestError, RequestTooLargeError
from threefold.metrics import EngineStats
from threefold.request import SamplingParams
from threefold.step import TokenDelta

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
MAX_QUEUED_MESSAGES = 16
"""Steps that may wait on either side for a client that reads slowly; then the engine waits for it, so nothing grows."""


class Launch(msgspec.Struct, frozen=True):
    """What a fresh engine process reads from its standard input: one line of JSON."""

    factory: str
    """Dotted name and function, `package.module:function`, that builds the engine from `config`."""
    config: dict[str, Any]
    """Plain data for the factory."""
    address: str
    """Where the parent listens, ipc://…"""
    parent_pid: int
    """The process to end with."""


class Message(msgspec.Struct, array_like=True, frozen=True):
    """Base of all messages: an array on the wire, its first element the type."""


class AddRequest(Message, frozen=True, tag=1):
    """Answer a prompt once for every id in `request_ids`."""

    request_ids: list[int]
    seeds: list[int]
    """One an answer."""
    prompt_token_ids: list[int]
    params: SamplingParams
    max_total_tokens: int
    end_token_ids: list[int]
    arrival_s: float
    """On the monotonic clock, which all processes of a machine share."""
    priority: int
    cache_salt: str


class Abort(Message, frozen=True, tag=2):
    """Nobody waits for these any more."""

    request_ids: list[int]


class GetStats(Message, frozen=True, tag=3):
    """Answered by Stats with the same ticket."""

    ticket: int


class ResetPrefixCache(Message, frozen=True, tag=4):
    """Answered by PrefixCacheReset with the same ticket."""

    ticket: int


class Shutdown(Message, frozen=True, tag=5):
    """End at once, whatever runs."""


class Ready(Message, frozen=True, tag=11):
    """The engine stands; the first message of one that does."""

    info: EngineInfo


class StartFailed(Message, frozen=True, tag=12):
    """The engine could not be built."""

    kind: str
    """Name of the error's class in threefold.errors; empty for a fault of ours."""
    message: str
    """One line."""


class StepOutput(Message, frozen=True, tag=13):
    """What one step brought."""

    request_ids: list[int]
    """Rows that got tokens and nothing else."""
    token_ids: list[list[int]]
    """Of those rows, the new tokens."""
    num_drafted: list[int]
    """Of those rows, drafts verified; empty when no row had any."""
    num_accepted: list[int]
    """Of them, accepted."""
    deltas: list[TokenDelta]
    """All other rows: an answer's first and last delta, log-probabilities, faults."""


class RequestRejected(Message, frozen=True, tag=14):
    """The engine did not take these requests."""

    request_ids: list[int]
    message: str
    is_our_fault: bool
    retry_after_s: float | None = None
    """Set when they would have waited too long: when to come back."""


class Stats(Message, frozen=True, tag=15):
    """The engine's counters now."""

    ticket: int
    stats: EngineStats


class PrefixCacheReset(Message, frozen=True, tag=16):
    """Whether the prefix cache was emptied."""

    ticket: int
    is_done: bool


class EngineFault(Message, frozen=True, tag=17):
    """The engine as a whole failed; the process ends after this."""

    message: str


ToEngine = AddRequest | Abort | GetStats | ResetPrefixCache | Shutdown
FromEngine = Ready | StartFailed | StepOutput | RequestRejected | Stats | PrefixCacheReset | EngineFault

_ENCODER = msgspec.msgpack.Encoder()
_TO_ENGINE = msgspec.msgpack.Decoder(ToEngine)
_FROM_ENGINE: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: Message) -> bytes:
    """Message to bytes.

    Raises:
        InvalidRequestError: a number over 64 bits or a text that is no Unicode.
        RequestTooLargeError: over MAX_MESSAGE_BYTES.
    """
    try:
        data = _ENCODER.encode(message)
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidRequestError(f"a value of the request cannot be carried: {error}") from error
    if len(data) > MAX_MESSAGE_BYTES:
        raise RequestTooLargeError(f"the request takes {len(data)} bytes inside, at most {MAX_MESSAGE_BYTES} may")
    return data


def decode_to_engine(data: bytes) -> ToEngine:
    """Bytes to a message for the engine; raises msgspec.DecodeError for anything else."""
    return _TO_ENGINE.decode(data)


def decode_from_engine(data: bytes) -> FromEngine:
    """Bytes to a message from the engine; raises msgspec.DecodeError for anything else."""
    return _FROM_ENGINE.decode(data)


def pack_step(deltas: list[TokenDelta]) -> StepOutput:
    """A step's deltas as columns."""
    request_ids: list[int] = []
    token_ids: list[list[int]] = []
    drafted: list[int] = []
    accepted: list[int] = []
    others: list[TokenDelta] = []
    for delta in deltas:
        request_id, ids, end, _, logprobs, prompt_logprobs, error, _, num_drafted, num_accepted, queue_s = delta
        has_more = logprobs is not None or prompt_logprobs is not None or error is not None
        if end is None and queue_s is None and not has_more:
            request_ids.append(request_id)
            token_ids.append(ids)
            drafted.append(num_drafted)
            accepted.append(num_accepted)
        else:
            others.append(delta)
    has_drafts = any(drafted)
    return StepOutput(request_ids, token_ids, drafted if has_drafts else [], accepted if has_drafts else [], others)
