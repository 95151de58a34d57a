"""Outcomes to figures, with the names of `vllm bench serve`'s result keys and a few more. Pure arithmetic.

TTFT    first piece with output, from the moment of sending (waiting in the client is CLIENT_QUEUE_TIME)
TPOT    (latency - TTFT) / (tokens - 1), tokens as the server counted them: the figure to compare when drafts are on
ITL     gap between pieces; with drafts a piece holds several tokens, so it is no time per token
E2EL    last piece with output, from the moment of sending
An open loop's requests may wait in the client, for --max-concurrency: that time, and E2EL with it, are own figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from threefold.bench.outcome import Outcome
from threefold.flags.targets import parse_targets

PERCENTILES: tuple[float, ...] = (50, 90, 95, 99)
_MAX_REASONS = 20
GOODPUT_NAMES = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2el", "e2e": "e2el"}
METRICS = ("ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue")


def measure(
    outcomes: Sequence[Outcome], duration_s: float, percentiles: Sequence[float] = PERCENTILES
) -> dict[str, Any]:
    """The figures of a load.

    Args:
        outcomes: every request that ended, failed ones among them.
        duration_s: from the first one sent to the last one over.
        percentiles: which ones are given of every latency.
    """
    done = [outcome for outcome in outcomes if not outcome.error]
    failed = Counter(outcome.error for outcome in outcomes if outcome.error)
    num_counted = sum(outcome.is_counted for outcome in done)
    total_output = sum(outcome.output_tokens for outcome in done)
    # Without the server's word nobody here knows a prompt's tokens.
    total_input = sum(outcome.prompt_tokens for outcome in done) if num_counted == len(done) else None
    result: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(done),
        "failed": sum(failed.values()),
        "failures": _reasons(failed),
        "total_input_tokens": total_input,
        "total_output_tokens": total_output,
        "total_cached_tokens": sum(outcome.cached_tokens for outcome in done),
        "request_throughput": rate(len(done), duration_s),
        "output_throughput": rate(total_output, duration_s),
        "total_token_throughput": rate(total_input + total_output, duration_s) if total_input is not None else None,
        "max_output_tokens_per_s": peak_tokens_per_s(done),
        "max_concurrent_requests": max_concurrent(outcomes),
        "finish_reasons": dict(Counter(outcome.finish_reason for outcome in done)),
        "tokens_counted_by": "server" if num_counted == len(done) else "pieces",
    }
    for name in METRICS:
        result.update(spread(name, samples_ms(name, done), percentiles))
    return result


def rate(count: float, seconds: float) -> float | None:
    """So many a second; None when no time went by."""
    return count / seconds if seconds > 0 else None


def _reasons(failed: Counter[str]) -> dict[str, int]:
    """The most frequent reasons; what is beyond them is counted together, as messages may hold numbers of their own."""
    reasons = dict(failed.most_common(_MAX_REASONS))
    rest = sum(failed.values()) - sum(reasons.values())
    return {**reasons, "other reasons": rest} if rest else reasons


def samples_ms(name: str, outcomes: Iterable[Outcome]) -> list[float]:
    """One of METRICS over the outcomes, milliseconds; a one-token answer has no TPOT, a closed loop no queue."""
    if name == "ttft":
        return [outcome.ttft_s * 1e3 for outcome in outcomes]
    if name == "tpot":
        return [outcome.tpot_s * 1e3 for outcome in outcomes if outcome.output_tokens > 1]
    if name == "itl":
        return [gap * 1e3 for outcome in outcomes for gap in outcome.gaps_s]
    if name == "e2el":
        return [outcome.latency_s * 1e3 for outcome in outcomes]
    share = 0.0 if name == "client_queue_time" else 1.0
    return [(o.queue_s + share * o.latency_s) * 1e3 for o in outcomes if o.due_s is not None]


def spread(name: str, samples: Sequence[float], percentiles: Sequence[float] = PERCENTILES) -> dict[str, float | None]:
    """Mean, median, standard deviation and percentiles as `mean_ttft_ms` …; None where there is no sample."""
    keys = [f"{what}_{name}_ms" for what in ("mean", "median", "std", *(f"p{p:g}" for p in percentiles))]
    if not samples:
        return dict.fromkeys(keys)
    values = np.asarray(samples)
    figures = [values.mean(), np.median(values), values.std(), *np.percentile(values, percentiles)]
    return dict(zip(keys, map(float, figures), strict=True))


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
    return parse_targets(terms, GOODPUT_NAMES, "--goodput")


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
