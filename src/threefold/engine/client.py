"""The text edge: everything that has to do with text, for requests whose tokens another process makes.

Checks requests, gives each answer an id and a seed, turns tokens into text, looks for stop strings, and tells the
engine whom nobody waits for any more. Async, for one event loop. Knows nothing about HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Any, Protocol

from threefold import errors
from threefold.engine import wire
from threefold.engine.gate import Gate
from threefold.engine.live import LiveAnswers
from threefold.engine.outputs import EngineInfo
from threefold.engine.process import EngineProcess, describe_exit
from threefold.engine.stream import AnswerStream
from threefold.errors import EngineDeadError, InvalidRequestError, OperatorError, OverloadedError, RequestFailedError
from threefold.metrics import EngineStats
from threefold.request import SamplingParams
from threefold.text.detokenizer import TokenDecoder
from threefold.text.prepare import ModelLimits, TokenEncoder, check_cache_salt, prepare, seed_source

STOP_TIMEOUT_S = 5.0


class ClientTokenizer(TokenDecoder, TokenEncoder, Protocol):
    """What the client needs of a tokenizer."""


class EngineClient:
    """A running engine in a process of its own. Made by `start`.

    Attributes:
        info: what the engine is and can.
        tokenizer: the model's.
        dead: done when the engine process has ended, for whatever reason; the reason.
    """

    info: EngineInfo
    tokenizer: ClientTokenizer
    _gate: Gate
    _limits: ModelLimits
    _draw_seed: Callable[[], int]

    def __init__(self, factory: str, config: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        self.dead: asyncio.Future[EngineDeadError] = loop.create_future()
        self._ready: asyncio.Future[EngineInfo] = loop.create_future()
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._live = LiveAnswers(self._abort, lambda: self._gate.observe_end(time.monotonic()))
        self._is_draining = False
        self._answer_ids = itertools.count()
        self._tickets = itertools.count()
        self._fault: str | None = None
        self._process = EngineProcess(factory, config, self._on_message)
        self._process.exit.add_done_callback(self._on_exit)

    @classmethod
    async def start(
        cls, factory: str, config: dict[str, Any], make_tokenizer: Callable[[EngineInfo], ClientTokenizer]
    ) -> EngineClient:
        """Start an engine process and wait until it stands.

        Args:
            factory: `package.module:function`, called in the new process with `config`; returns a loop.BuiltEngine.
            config: plain data for it.
            make_tokenizer: gives the tokenizer for an engine, in this process.

        Raises:
            OperatorError: the engine could not be built; the message is the process's own line.
            EngineDeadError: it ended before it stood, or a fault of ours kept it from standing.
        """
        client = cls(factory, config)
        try:
            client.info = await asyncio.shield(client._ready)
            client.tokenizer = make_tokenizer(client.info)
        except BaseException:
            client._ready.cancel()
            client._process.kill()
            await client._process.exit
            raise
        info = client.info
        client._gate = Gate(info.max_num_seqs, info.max_num_queued_reqs)
        client._limits = ModelLimits(info.max_model_len, info.vocab_size, frozenset(info.eos_token_ids))
        client._draw_seed = seed_source(info.seed)
        return client

    @property
    def is_alive(self) -> bool:
        """False once the engine process has ended."""
        return not self.dead.done()

    def generate(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AnswerStream:
        """Answer a prompt `params.n` times; the request is on its way when this returns.

        Returns:
            An async iterator over pieces of all answers, interleaved. Leaving it early (`aclose`, a cancelled reader,
            the last reference gone) aborts the request. It raises RequestFailedError when the request hits a fault
            inside the engine, EngineDeadError when the engine dies, OverloadedError before the first piece when the
            engine holds latency targets and the first token would come too late.

        Raises:
            InvalidRequestError, ContextLengthError: the request cannot be run.
            OverloadedError: too many wait, or the engine is draining.
            EngineDeadError: there is no engine any more.
        """
        self._admit()
        check_cache_salt(cache_salt)
        ready = prepare(prompt_token_ids, params, self._limits, self.tokenizer, self._draw_seed)
        ids = [next(self._answer_ids) for _ in ready.seeds]
        self._process.send(
            wire.AddRequest(
                request_ids=ids,
                seeds=ready.seeds,
                prompt_token_ids=prompt_token_ids,
                params=ready.params,
                max_total_tokens=ready.max_total_tokens,
                end_token_ids=sorted(ready.end_token_ids),
                arrival_s=time.monotonic(),
                priority=priority,
                cache_salt=cache_salt,
            )
        )
        return self._live.open(request_id, ids, self.tokenizer, params)

    async def stats(self) -> EngineStats:
        """The engine's counters now."""
        stats: EngineStats = await self._ask(wire.GetStats)
        return stats

    async def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; False when requests still hold blocks of it."""
        is_done: bool = await self._ask(wire.ResetPrefixCache)
        return is_done

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests, let running ones end for `timeout_s`, then abort. Returns how many were aborted."""
        self._is_draining = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._live.is_idle.wait(), timeout_s)
        return self._live.abort_all()

    async def close(self) -> None:
        """End the engine process; requests that still run fail with EngineDeadError."""
        self._is_draining = True
        self._fault = self._fault or "the engine was shut down"
        await self._process.stop(STOP_TIMEOUT_S)

    def _admit(self) -> None:
        if self.dead.done():
            raise EngineDeadError(str(self.dead.result()))
        if self._is_draining:
            raise OverloadedError("the server is shutting down")
        self._gate.check(len(self._live))

    async def _ask(self, question: Callable[[int], wire.Message]) -> Any:
        ticket = next(self._tickets)
        reply = self._replies[ticket] = asyncio.get_running_loop().create_future()
        try:
            self._process.send(question(ticket))
            return await reply
        finally:
            self._replies.pop(ticket, None)

    def _abort(self, answer_ids: list[int]) -> None:
        with contextlib.suppress(EngineDeadError):  # then nothing runs
            self._process.send(wire.Abort(answer_ids))

    def _on_message(self, message: wire.FromEngine) -> None:
        match message:
            case wire.StepOutput():
                self._live.on_step(message)
            case wire.RequestRejected(request_ids):
                self._live.fail(request_ids[0], _rejection(message))  # one request's answers: they fail together
            case wire.Stats(ticket, reply) | wire.PrefixCacheReset(ticket, reply):
                if (waiting := self._replies.get(ticket)) is not None and not waiting.done():
                    waiting.set_result(reply)
            case wire.Ready(info) if not self._ready.done():
                self._ready.set_result(info)
            case wire.StartFailed(kind, reason) if not self._ready.done():
                self._ready.set_exception(_start_error(kind, reason))
            case wire.EngineFault(reason):
                self._fault = reason
                asyncio.get_running_loop().call_later(STOP_TIMEOUT_S, self._process.kill)  # should it hang in its end

    def _on_exit(self, exit_: asyncio.Future[int]) -> None:
        reason = self._fault or f"the engine process ended with {describe_exit(exit_.result())}"
        self.dead.set_result(EngineDeadError(reason))
        if not self._ready.done():
            self._ready.set_exception(EngineDeadError(f"{reason}, before it was ready"))
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(EngineDeadError(reason))
        self._live.fail_all(lambda: EngineDeadError(reason))


def _rejection(message: wire.RequestRejected) -> errors.ThreefoldError:
    if message.retry_after_s is not None:
        return OverloadedError(message.message, retry_after_s=message.retry_after_s, reason="slo")
    return RequestFailedError(message.message) if message.is_our_fault else InvalidRequestError(message.message)


def _start_error(kind: str, message: str) -> errors.ThreefoldError:
    """The error that the process named, made anew on this side."""
    known = (errors.ConfigError, errors.ModelLoadError, errors.MemoryPlanError, errors.DownloadError, OperatorError)
    for error_class in known:
        if error_class.__name__ == kind:
            return error_class(message)
    return EngineDeadError(f"the engine could not start: {message}")
