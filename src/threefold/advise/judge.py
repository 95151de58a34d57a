"""One lever judged: against the base at the load's own number of users, several times, and at other numbers once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from threefold.advise.evaluate import Evaluator, Pair
from threefold.advise.levers import Variant
from threefold.advise.result import LoadResult
from threefold.advise.targets import missed
from threefold.advise.verdict import (
    LEAST_ESTIMATE,
    LEAST_GAIN,
    OFF,
    ON,
    LoadGain,
    Verdict,
    flip_point,
    interval,
    judged,
)

LEAST_ERROR = 0.01
"""Relative, of any simulated change …"""
MODEL_ERROR = 0.1
"""… this share of it where it rests on readings …"""
ESTIMATE_ERROR = 0.25
"""… and this one where it rests on an assumption or on the curve's split."""
LOADS = (1, 4, 16, 64, 256)
"""Users at which every lever is tried."""
SETTINGS = {
    "prefix caching": ("--enable-prefix-caching", "--no-enable-prefix-caching"),
    "ngram": ("--spec-method ngram", "--no-speculation"),
    "suffix": ("--spec-method suffix", "--no-speculation"),
    "draft model": ("--spec-method draft_model --spec-model DRAFT", "--no-speculation"),
    "fp8 weights": ("--quantization fp8", ""),
    "awq weights": ("an AWQ checkpoint of the model", ""),
    "fp8 kv cache": ("--kv-cache-dtype fp8", ""),
}


class Judge:
    """Simulates a lever at its own load, several times, and at the others, once each."""

    def __init__(
        self, evaluator: Evaluator, base: Variant, concurrency: int, samples: int, targets: Mapping[str, float]
    ) -> None:
        self._evaluator = evaluator
        self._base = base
        self._concurrency = concurrency
        self._samples = samples
        self._targets = targets
        limit = max(base.settings.max_num_seqs, concurrency)
        self._loads = sorted({users for users in LOADS if users <= limit} | {concurrency})
        self._bases: dict[tuple[int, int], LoadResult] = {}

    @property
    def base_results(self) -> list[LoadResult]:
        """The base at its own load, by sample."""
        own = [(sample, result) for (users, sample), result in self._bases.items() if users == self._concurrency]
        return [result for _, result in sorted(own, key=lambda item: item[0])]

    def verdict(self, variant: Variant) -> Verdict:
        """Of one lever."""
        own = [self._pair(variant, self._concurrency, sample) for sample in range(self._samples)]
        gains: list[LoadGain] = []
        for users in self._loads:
            pairs = own if users == self._concurrency else [self._pair(variant, users, 0)]
            gains.append(_gain(variant, users, pairs))
        changes = [_signed(variant, pair.change) for pair in own]
        change, low, high = interval(changes, _error(variant, changes))
        here = next(gain for gain in gains if gain.concurrency == self._concurrency)
        verdict = judged(change, low, high, LEAST_ESTIMATE if variant.is_estimate else LEAST_GAIN)
        reason = _reason(variant, own)
        with_it = own[0].base if _is_reversed(variant) else own[0].moved
        without = own[0].moved if _is_reversed(variant) else own[0].base
        broken = missed(with_it, self._targets)
        if verdict == ON and broken and not missed(without, self._targets):
            verdict, reason = OFF, f"it is faster, but breaks a target: {', '.join(broken)}; {reason}"
        on, off = SETTINGS[variant.name]
        return Verdict(
            variant.name,
            verdict,
            off if verdict == OFF else on if verdict == ON else "",
            change,
            low,
            high,
            here.ttft_change,
            here.tpot_change,
            flip_point(gains),
            variant.costs,
            reason,
            variant.is_estimate,
            gains,
        )

    def _pair(self, variant: Variant, users: int, sample: int) -> Pair:
        if (users, sample) not in self._bases:
            self._bases[users, sample] = self._evaluator.run(self._base, users, sample)
        return Pair(self._bases[users, sample], self._evaluator.run(variant, users, sample))


def _error(variant: Variant, changes: Sequence[float]) -> float:
    """Standard error that no resampling shows: of the simulator for all, of the split or assumption for estimates."""
    size = abs(math.log(max(1.0 + sum(changes) / len(changes), 1e-6)))
    return max(LEAST_ERROR if size else 0.0, (ESTIMATE_ERROR if variant.is_estimate else MODEL_ERROR) * size)


def _is_reversed(variant: Variant) -> bool:
    """Prefix caching is judged by taking it away."""
    return not variant.settings.has_prefix_cache


def _signed(variant: Variant, change: float) -> float:
    return 1 / max(1 + change, 1e-6) - 1 if _is_reversed(variant) else change


def _gain(variant: Variant, users: int, pairs: Sequence[Pair]) -> LoadGain:
    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    base = pairs[0].base
    return LoadGain(
        users,
        base.num_done / base.duration_s if base.duration_s else 0.0,
        interval([_signed(variant, pair.change) for pair in pairs])[0],
        mean([_signed(variant, pair.latency_change("ttft")) for pair in pairs]),
        mean([_signed(variant, pair.latency_change("tpot")) for pair in pairs]),
    )


def _reason(variant: Variant, pairs: Sequence[Pair]) -> str:
    """The figures that decide, so that a person can follow."""
    base, moved = pairs[0].base, pairs[0].moved
    stats = base.stats if _is_reversed(variant) else moved.stats
    if _is_reversed(variant):
        hits = stats.prefix_hits / max(stats.prefix_queries, 1)
        return f"{hits:.0%} of prompt tokens are found; prompts are {_prompt_share(base):.0%} of the tokens computed"
    if variant.drafter is not None:
        drafted, accepted = stats.num_draft_tokens, stats.num_accepted_tokens
        if not drafted:
            return f"the controller verified nothing: no draft was worth its time ({variant.basis})"
        share = accepted / max(moved.output_tokens, 1)
        return (
            f"{share:.0%} of output tokens came from drafts, {accepted / drafted:.0%} of those verified held "
            f"({variant.basis})"
        )
    return f"{'an estimate ' if variant.is_estimate else ''}from {variant.basis}"


def _prompt_share(result: LoadResult) -> float:
    computed = result.stats.prompt_tokens_computed
    return computed / max(computed + result.output_tokens, 1)
