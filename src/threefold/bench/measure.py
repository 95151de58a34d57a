"""Outcomes to figures, with the names of `vllm bench serve`'s result keys and a few more. Pure arithmetic.

TTFT    first piece with output, from the moment of sending
TPOT    (latency - TTFT) / (tokens - 1), tokens as the server counted them: the figure to compare when drafts are on
ITL     gap between pieces; with drafts a piece holds several tokens, so it is no time per token
E2EL    last piece with output, from the moment of sending
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from threefold.bench.outcome import Outcome
from threefold.errors import ConfigError

PERCENTILES = (50, 90, 95, 99)
_MAX_REASONS = 20
METRICS = ("ttft", "tpot", "itl", "e2el")


def measure(outcomes: Sequence[Outcome], duration_s: float, concurrency: int) -> dict[str, Any]:
    """The figures of a load.

    Args:
        outcomes: every request that ended, failed ones among them.
        duration_s: from the first one sent to the last one over.
        concurrency: streams of the closed loop.
    """
    done = [outcome for outcome in outcomes if not outcome.error]
    failed = Counter(outcome.error for outcome in outcomes if outcome.error)
    total_input, total_output = sum(o.prompt_tokens for o in done), sum(o.output_tokens for o in done)
    seconds = duration_s if duration_s > 0 else float("nan")
    steady_s, steady_tokens = steady_window(done, concurrency)
    result: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(done),
        "failed": sum(failed.values()),
        "failures": _reasons(failed),
        "total_input_tokens": total_input,
        "total_output_tokens": total_output,
        "total_cached_tokens": sum(outcome.cached_tokens for outcome in done),
        "request_throughput": len(done) / seconds,
        "output_throughput": total_output / seconds,
        "total_token_throughput": (total_input + total_output) / seconds,
        "steady_duration": steady_s,
        "steady_output_throughput": steady_tokens / steady_s if steady_s > 0 else None,
        "max_output_tokens_per_s": peak_tokens_per_s(done),
        "max_concurrent_requests": max_concurrent(outcomes),
        "finish_reasons": dict(Counter(outcome.finish_reason for outcome in done)),
        "tokens_counted_by": "server" if all(outcome.is_counted for outcome in done) else "pieces",
    }
    for name in METRICS:
        result.update(spread(name, samples_ms(name, done)))
    return result


def _reasons(failed: Counter[str]) -> dict[str, int]:
    """The most frequent reasons; what is beyond them is counted together, as messages may hold numbers of their own."""
    reasons = dict(failed.most_common(_MAX_REASONS))
    rest = sum(failed.values()) - sum(reasons.values())
    return {**reasons, "other reasons": rest} if rest else reasons


def samples_ms(name: str, outcomes: Iterable[Outcome]) -> list[float]:
    """One of METRICS over the outcomes, milliseconds; a one-token answer has no TPOT."""
    if name == "ttft":
        return [outcome.ttft_s * 1e3 for outcome in outcomes]
    if name == "tpot":
        return [outcome.tpot_s * 1e3 for outcome in outcomes if outcome.output_tokens > 1]
    if name == "itl":
        return [gap * 1e3 for outcome in outcomes for gap in outcome.gaps_s]
    return [outcome.latency_s * 1e3 for outcome in outcomes]


def spread(name: str, samples: Sequence[float]) -> dict[str, float | None]:
    """Mean, median, standard deviation and percentiles as `mean_ttft_ms` …; None where there is no sample."""
    keys = [f"{what}_{name}_ms" for what in ("mean", "median", "std", *(f"p{p}" for p in PERCENTILES))]
    if not samples:
        return dict.fromkeys(keys)
    values = np.asarray(samples)
    figures = [values.mean(), np.median(values), values.std(), *np.percentile(values, PERCENTILES)]
    return dict(zip(keys, map(float, figures), strict=True))


def steady_window(done: Sequence[Outcome], concurrency: int) -> tuple[float, float]:
    """The time in which every stream was busy, and the output tokens that came in it.

    From the moment the last of the `concurrency` first requests was sent to the moment the first stream found nothing
    more to send: ramp-up and tail do not dilute it. (0, 0) when the load never filled the streams.
    """
    if len(done) < concurrency or not done:
        return 0.0, 0.0
    starts = sorted(outcome.start_s for outcome in done)
    begin, last_start = starts[concurrency - 1], starts[-1]
    end = min((outcome.end_s for outcome in done if outcome.end_s > last_start), default=last_start)
    tokens = 0.0
    for outcome in done:
        if outcome.chunk_times_s:
            inside = sum(begin <= moment <= end for moment in outcome.chunk_times_s)
            tokens += outcome.output_tokens * inside / len(outcome.chunk_times_s)
    return max(end - begin, 0.0), tokens


def peak_tokens_per_s(done: Sequence[Outcome]) -> float:
    """Most output tokens in any whole second of the load's clock."""
    if not done:
        return 0.0
    origin = min(outcome.start_s for outcome in done)
    weights: dict[int, float] = {}
    for outcome in done:
        pieces = Counter(int(moment - origin) for moment in outcome.chunk_times_s)
        for second, count in pieces.items():
            share = outcome.output_tokens * count / len(outcome.chunk_times_s)
            weights[second] = weights.get(second, 0.0) + share
    return max(weights.values())


def max_concurrent(outcomes: Sequence[Outcome]) -> int:
    """Most requests in flight at one moment."""
    # At equal moments an end comes before a start: the stream that ends one sends the next.
    events = sorted([(o.start_s, 1) for o in outcomes] + [(o.end_s, -1) for o in outcomes])
    running = most = 0
    for _, change in events:
        running += change
        most = max(most, running)
    return most


def parse_goodput(terms: Sequence[str]) -> dict[str, float]:
    """Read `ttft:500`, `tpot:50`, `e2el:2000` (milliseconds).

    Raises:
        ConfigError: an unknown metric or no number.
    """
    limits: dict[str, float] = {}
    for term in terms:
        name, _, value = term.partition(":")
        if name not in ("ttft", "tpot", "e2el"):
            raise ConfigError(f"--goodput {term}: wants ttft:MS, tpot:MS or e2el:MS")
        try:
            limits[name] = float(value)
        except ValueError:
            raise ConfigError(f"--goodput {term}: '{value}' is no number of milliseconds") from None
        if not limits[name] > 0:
            raise ConfigError(f"--goodput {term}: the limit must be above 0")
    return limits


def goodput(outcomes: Sequence[Outcome], duration_s: float, limits_ms: Mapping[str, float]) -> dict[str, Any]:
    """Requests a second that met every limit, and the share that met each; failed requests met none.

    A one-token answer has a TPOT of 0 and so meets any limit on it.
    """
    figures = {
        "ttft": lambda outcome: outcome.ttft_s,
        "tpot": lambda outcome: outcome.tpot_s,
        "e2el": lambda outcome: outcome.latency_s,
    }
    met = {
        name: [not outcome.error and figures[name](outcome) * 1e3 <= limit for outcome in outcomes]
        for name, limit in limits_ms.items()
    }
    num_good = sum(all(verdicts) for verdicts in zip(*met.values(), strict=True))
    return {
        "request_goodput": num_good / duration_s if duration_s > 0 else None,
        "goodput_limits_ms": dict(limits_ms),
        "goodput_attainment": {name: sum(verdicts) / max(len(verdicts), 1) for name, verdicts in met.items()},
    }
