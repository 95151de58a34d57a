"""What the HTTP side measures: one `CallRecord` a call, all of them feeding one `RequestMetrics`.

Times are seen where the client will see them, so queues between engine and socket count.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from threefold.engine.outputs import OutputDelta
from threefold.metrics import Histogram
from threefold.request import FinishReason
from threefold.server import buckets
from threefold.server.call import Call
from threefold.server.replies import CompletionTokensDetails, PromptTokensDetails, Usage


class RequestMetrics:
    """Counters and histograms over all calls since the start."""

    def __init__(self, max_model_len: int) -> None:
        tokens = buckets.token_counts(max_model_len)
        self.first_token_s = Histogram(buckets.FIRST_TOKEN_S)
        self.token_gap_s = Histogram(buckets.TOKEN_GAP_S)
        self.time_per_token_s = Histogram(buckets.TOKEN_GAP_S)
        self.end_to_end_s = Histogram(buckets.REQUEST_S)
        self.queue_s = Histogram(buckets.REQUEST_S)
        self.inference_s = Histogram(buckets.REQUEST_S)
        self.prefill_s = Histogram(buckets.REQUEST_S)
        self.decode_s = Histogram(buckets.REQUEST_S)
        self.prompt_tokens = Histogram(tokens)
        self.generation_tokens = Histogram(tokens)
        self.max_generation_tokens = Histogram(tokens)
        self.params_max_tokens = Histogram(tokens)
        self.params_n = Histogram(buckets.ANSWERS)
        self.prefill_computed_tokens = Histogram(tokens)
        self.cached_tokens = 0
        self.finished: Counter[FinishReason] = Counter()
        self.rejections: Counter[str] = Counter(queue_full=0)
        """Calls refused before they ran, by reason."""
        self.aborted_tokens = 0
        """Generated for answers that nobody waited for any more."""


class _Answer:
    __slots__ = ("finish_reason", "first_s", "last_s", "num_tokens", "queue_s")

    def __init__(self) -> None:
        self.num_tokens = 0
        self.first_s = 0.0
        self.last_s = 0.0
        self.queue_s = 0.0
        self.finish_reason: FinishReason | None = None


class CallRecord:
    """Follows one call from its first piece to its last.

    Args:
        call: the call.
        metrics: what it adds to.
        shows_cached: report cached prompt tokens in usage.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        call: Call,
        metrics: RequestMetrics,
        *,
        shows_cached: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.call = call
        self.num_completion_tokens = 0
        self.num_drafted = 0
        self.num_accepted = 0
        self._metrics = metrics
        self._shows_cached = shows_cached
        self._clock = clock
        self._answers = [_Answer() for _ in range(call.num_choices)]
        self._cached = [0] * len(call.prompts)
        self._num_open = call.num_choices

    def note(self, piece: OutputDelta) -> None:
        """A piece came from the engine."""
        answer = self._answers[piece.index]
        num_tokens = len(piece.token_ids)
        if num_tokens:
            now = self._clock()
            if answer.num_tokens:
                self._metrics.token_gap_s.observe(now - answer.last_s)
            else:
                self._start(answer, piece, now)
            answer.num_tokens += num_tokens
            answer.last_s = now
            self.num_completion_tokens += num_tokens
            self.num_drafted += piece.num_drafted
            self.num_accepted += piece.num_accepted
        if piece.finish_reason is not None:
            self._finish(answer, piece.finish_reason)

    def close(self, reason: FinishReason) -> None:
        """The call is over; answers that are open ended for this reason. Not for calls that were refused."""
        for answer in self._answers:
            if answer.finish_reason is None:
                self._finish(answer, reason)

    def usage(self) -> Usage:
        """Tokens so far."""
        num_prompt = sum(len(prompt.token_ids) for prompt in self.call.prompts)
        usage = Usage(num_prompt, self.num_completion_tokens, num_prompt + self.num_completion_tokens)
        if self._shows_cached:
            usage.prompt_tokens_details = PromptTokensDetails(sum(self._cached))
        usage.completion_tokens_details = CompletionTokensDetails(
            self.num_accepted, self.num_drafted - self.num_accepted
        )
        return usage

    def timings(self) -> dict[str, Any]:
        """`metrics` of the response, for a call with one answer."""
        answer = self._answers[0]
        generation_s = answer.last_s - answer.first_s
        later_tokens = answer.num_tokens - 1
        rate = self.num_accepted / self.num_drafted if self.num_drafted else None
        return {
            "time_to_first_token_ms": _ms(answer.first_s - self.call.arrival_s),
            "generation_time_ms": _ms(generation_s),
            "queue_time_ms": _ms(answer.queue_s),
            "mean_itl_ms": _ms(generation_s / later_tokens) if later_tokens > 0 else None,
            "tokens_per_second": round(later_tokens / generation_s, 3) if generation_s > 0 else None,
            "speculative_decoding": {
                "draft_acceptance_rate": rate,
                "num_draft_tokens": self.num_drafted,
                "num_accepted_draft_tokens": self.num_accepted,
            },
        }

    def log_fields(self) -> dict[str, Any]:
        """For the request log; no text of the request is among them."""
        firsts = [answer.first_s for answer in self._answers if answer.num_tokens]
        return {
            "request_id": self.call.response_id,
            "endpoint": self.call.endpoint,
            "prompt_tokens": sum(len(prompt.token_ids) for prompt in self.call.prompts),
            "cached_tokens": sum(self._cached),
            "completion_tokens": self.num_completion_tokens,
            "drafted_tokens": self.num_drafted,
            "accepted_tokens": self.num_accepted,
            "finish_reason": ",".join(sorted({answer.finish_reason or "refused" for answer in self._answers})),
            "ttft_ms": _ms(min(firsts) - self.call.arrival_s) if firsts else None,
            "e2e_ms": _ms(self._clock() - self.call.arrival_s),
        }

    def _start(self, answer: _Answer, piece: OutputDelta, now: float) -> None:
        answer.first_s = now
        answer.queue_s = piece.queue_s or 0.0
        self._metrics.first_token_s.observe(now - self.call.arrival_s)
        self._metrics.queue_s.observe(answer.queue_s)
        self._metrics.prefill_s.observe(max(now - self.call.arrival_s - answer.queue_s, 0.0))
        place, nth = divmod(piece.index, self.call.params.n)
        if nth == 0:  # the prompt counts once, however many answers it has
            num_prompt = len(self.call.prompts[place].token_ids)
            self._cached[place] = piece.num_cached_tokens
            self._metrics.prompt_tokens.observe(num_prompt)
            self._metrics.prefill_computed_tokens.observe(num_prompt - piece.num_cached_tokens)
            self._metrics.cached_tokens += piece.num_cached_tokens

    def _finish(self, answer: _Answer, reason: FinishReason) -> None:
        answer.finish_reason = reason
        metrics = self._metrics
        metrics.finished[reason] += 1
        self._num_open -= 1
        if self._num_open == 0:
            self._observe_call()
        if reason in (FinishReason.ABORT, FinishReason.ERROR):
            metrics.aborted_tokens += answer.num_tokens
            return
        metrics.end_to_end_s.observe(self._clock() - self.call.arrival_s)
        metrics.generation_tokens.observe(answer.num_tokens)
        if answer.num_tokens:
            decode_s = answer.last_s - answer.first_s
            metrics.decode_s.observe(decode_s)
            metrics.inference_s.observe(max(answer.last_s - self.call.arrival_s - answer.queue_s, 0.0))
            if answer.num_tokens > 1:
                metrics.time_per_token_s.observe(decode_s / (answer.num_tokens - 1))

    def _observe_call(self) -> None:
        params = self.call.params
        self._metrics.params_n.observe(params.n)
        if params.max_tokens is not None:
            self._metrics.params_max_tokens.observe(params.max_tokens)
        self._metrics.max_generation_tokens.observe(max(answer.num_tokens for answer in self._answers))


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
