"""Latency targets held: how many run, how much of a prompt a step takes, who is refused for want of time.

With D rows that say tokens and s(n) the time of a step that feeds n prompt tokens beside them (pace.py: the cost curve
times its own error), and T the target of the time between tokens, less a margin (AIM):

    running set      the most rows N with s(MIN_PROMPT_TOKENS) <= T beside N: what they will read by mid-answer counted
    prompt tokens    the most n with s(n) <= T, at least MIN_PROMPT_TOKENS: a prompt always gets on
    late prompt      when the prompt first in line would miss its own target at n a step, the most n with
                     s(n) <= T + SPENT · what the running requests have saved, each T · tokens - time so far: they
                     pay from their savings and stay within T
    drafts           the most that keep the step within T, whether they pass or not
    first token      of a request that arrives, forecast over those before it (outlook.py), times the forecast's own
                     error; beyond the target it is refused, with the wait that was forecast

So rows and prompts find their balance by themselves: the more rows, the less room for prompts, the fewer new rows. A
target of pace below what the machine does with one request alone is held at BEST times that, and a request that would
miss its target alone is taken unless it would have to wait PATIENCE times as long. Who waits is never dropped.
Knows nothing about tensors and clocks: times are passed in, so the same object runs in a server and in a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from threefold.cost import CostCurve, StepShape
from threefold.errors import OverloadedError
from threefold.metrics import SloStats
from threefold.request import Request
from threefold.schedule.attained import Attained
from threefold.schedule.outlook import Line, Outlook
from threefold.schedule.pace import Pace
from threefold.schedule.running import Row
from threefold.schedule.tempo import AIM, Tempo
from threefold.step import StepResult, TokenDelta

SPENT = 0.5
"""Of what the running requests have saved, what a late prompt may cost them in a step."""
PATIENCE = 3.0
"""How late a request may be that would miss its target alone, over what it would take alone."""
MIN_RETRY_S = 1.0
UNLIMITED = 1 << 40


class StepLimits(NamedTuple):
    """What the targets leave to a step."""

    max_rows: int
    """Running requests beyond which nobody is admitted."""
    num_prompt_tokens: int
    """Of all prompts together."""


NO_LIMITS = StepLimits(UNLIMITED, UNLIMITED)


class Slo:
    """Holds the targets of one engine.

    Args:
        curve: what steps cost.
        targets: milliseconds of "ttft" (first token) and "tpot" (mean time between tokens), or one of them.
        is_learning: refine the curve; False where the speculation controller, which holds it too, does.
    """

    def __init__(self, curve: CostCurve, targets: Mapping[str, float], *, is_learning: bool = True) -> None:
        self._ttft_ms = targets.get("ttft")
        self._pace = Pace(curve, is_learning=is_learning)
        self._tempo = Tempo(self._pace, targets.get("tpot"))
        self._outlook = Outlook(self._pace, self._tempo)
        self._attained = Attained(self._ttft_ms, self._tempo.target_ms)
        self._num_shed = 0
        self._predicted_ms = 0.0
        self._max_rows = 0
        self._began_s: float | None = None  # the end of the last step, None = nothing ran since

    def best_tpot_ms(self) -> float:
        """Time between tokens of one request alone."""
        return self._tempo.best_ms()

    def most_rows(self, context_tokens: float, most: int) -> int:
        """The largest running set of such contexts within the target, at least 1 and at most `most`."""
        return self._tempo.most_rows(context_tokens, most)

    def longest_prompt(self, max_tokens: int) -> int:
        """Tokens of the longest prompt that alone keeps its target, at most max_tokens a step; 0 = not even one."""
        assert self._ttft_ms is not None
        whole_ms = self._pace.ms(max_tokens, 1, max_tokens)
        num_whole = int(self._ttft_ms / whole_ms)
        rest_ms = self._ttft_ms - num_whole * whole_ms
        return num_whole * max_tokens + self._pace.most_tokens(rest_ms, 0, 0, max_tokens)

    def open_step(
        self, rows: Sequence[Row], waiting: Request | None, *, max_rows: int, max_tokens: int, now_s: float
    ) -> StepLimits:
        """What the next step may hold.

        Args:
            rows: running.
            waiting: the request that is next in the queue.
            max_rows: most rows without the targets.
            max_tokens: most tokens without the targets.
            now_s: the clock.
        """
        if self._began_s is None:
            self._began_s = now_s
        decoding, kv_tokens, fed = _split(rows)
        prompt = fed or waiting
        if self._tempo.target_ms is None or prompt is None:
            return NO_LIMITS
        context_tokens = self._outlook.context_of(kv_tokens + prompt.num_tokens, len(rows) + 1)
        self._tempo.context_tokens = context_tokens
        self._max_rows = self._tempo.most_rows(context_tokens, max_rows)
        most = max_tokens - len(decoding)
        num_tokens = self._tempo.most_prompt_tokens(len(decoding), kv_tokens, most)
        if num_tokens == most:  # the budget alone decides
            return StepLimits(self._max_rows, UNLIMITED)
        if self._is_late(prompt, num_tokens, now_s):
            extra_ms = SPENT * self._attained.saved_ms(decoding, now_s)
            num_tokens = self._tempo.most_prompt_tokens(len(decoding), kv_tokens, most, extra_ms=extra_ms)
        return StepLimits(self._max_rows, num_tokens)

    def num_drafts(self, shape: StepShape, most: int) -> int:
        """Draft tokens that a step may take besides what it holds, at most `most`."""
        return self._tempo.most_drafts(shape, most)

    def end_step(
        self, shape: StepShape, result: StepResult, deltas: Sequence[TokenDelta], now_s: float, *, has_work: bool
    ) -> None:
        """A step ended; without work left, the time until the next one begins is nobody's."""
        if self._began_s is not None:
            self._pace.observe(shape, result.forward_ms, (now_s - self._began_s) * 1000)
        self._began_s = now_s if has_work else None
        self._outlook.observe_step(deltas)
        for length in self._attained.take(deltas, now_s):
            self._outlook.lengths.observe(length)

    def check(self, request: Request, line: Line, now_s: float) -> None:
        """A request arrives: take it, or refuse it for want of time.

        Raises:
            OverloadedError: its first token would come too late, given those before it.
        """
        predicted_ms = 0.0
        if self._ttft_ms is not None:
            found = self._outlook.forecast(request, line)
            predicted_ms = (now_s - request.arrival_s) * 1000 + found.first_token_ms
            self._predicted_ms = predicted_ms * self._attained.error
            if self._predicted_ms > AIM * self._ttft_ms and self._is_crowded_out(request, line, AIM * self._ttft_ms):
                self._num_shed += 1
                wait_s = found.wait_ms * self._attained.error / 1000
                raise _refusal(self._predicted_ms, self._ttft_ms, wait_s, len(line.rows) + len(line.waiting))
        self._attained.start(request, predicted_ms)

    def observe_admission(self, num_tokens: int, num_cached: int) -> None:
        """A request was admitted with so many tokens, of which the prefix cache had some."""
        self._outlook.observe_admission(num_tokens, num_cached)

    def forget(self, request_id: int) -> None:
        """Nobody waits for the request any more."""
        self._attained.forget(request_id)

    def stats(self) -> SloStats:
        """Counters and gauges for metrics."""
        return SloStats(
            ttft_target_ms=self._ttft_ms,
            tpot_target_ms=self._tempo.target_ms,
            num_shed=self._num_shed,
            predicted_ttft_ms=self._predicted_ms,
            running_limit=self._max_rows,
            step_error=self._pace.error(max(self._max_rows, 1)),
            ttft_error=self._attained.error,
            ttft_attained=self._attained.ttft_share,
            tpot_attained=self._attained.tpot_share,
        )

    def _is_crowded_out(self, request: Request, line: Line, limit_ms: float) -> bool:
        """True when it is those before a request that make it late; it may be late without them."""
        if line.is_empty:
            return False
        alone_ms = self._outlook.forecast(request, line.emptied()).first_token_ms * self._attained.error
        return alone_ms <= limit_ms or self._predicted_ms > PATIENCE * alone_ms

    def _is_late(self, prompt: Request, num_tokens: int, now_s: float) -> bool:
        """True when a prompt would miss its target at so many tokens a step."""
        if self._ttft_ms is None or prompt.num_output_tokens:
            return False
        num_steps = -(-(prompt.num_tokens - prompt.num_computed) // num_tokens)
        left_ms = AIM * self._ttft_ms - (now_s - prompt.arrival_s) * 1000
        return num_steps * self._tempo.held_ms() > left_ms


def _split(rows: Sequence[Row]) -> tuple[list[int], int, Request | None]:
    """Request ids of the rows that say tokens, KV tokens of all rows, and the first that is still fed."""
    decoding = []
    kv_tokens = 0
    fed = None
    for row in rows:  # a hot loop: is_fed by hand
        request = row.request
        num_computed = request.num_computed
        kv_tokens += num_computed
        if len(request.token_ids) - num_computed <= 1:
            decoding.append(request.request_id)
        elif fed is None:
            fed = request
    return decoding, kv_tokens, fed


def _refusal(predicted_ms: float, target_ms: float, wait_s: float, num_before: int) -> OverloadedError:
    return OverloadedError(
        f"the first token would come after about {predicted_ms / 1000:.1f} s, {num_before} requests are before it; "
        f"this server holds to {target_ms:g} ms",
        retry_after_s=max(wait_s, MIN_RETRY_S),
        reason="slo",
    )
