"""Plain counters to Prometheus series: `vllm:*` by names, types and labels that dashboards read, `threefold:*` ours.

Counters that the engine keeps come as a snapshot, those of the HTTP side as they stand; scrapes hold nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from threefold.metrics import EngineStats, Histogram, SloStats
from threefold.request import FinishReason
from threefold.server.buckets import ITERATION_TOKENS
from threefold.server.call import ModelFacts
from threefold.server.record import RequestMetrics

ENGINE = "0"
_LABELS = ("model_name", "engine")


def render_metrics(info: ModelFacts, stats: EngineStats, requests: RequestMetrics, accept: str) -> tuple[bytes, str]:
    """The body and content type of /metrics.

    Args:
        info: names the model and its cache.
        stats: the engine's counters now.
        requests: the HTTP side's counters.
        accept: the scraper's Accept header.
    """
    registry = CollectorRegistry()
    registry.register(_Scrape(info, stats, requests))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Scrape(Collector):
    def __init__(self, info: ModelFacts, stats: EngineStats, requests: RequestMetrics) -> None:
        self._info = info
        self._stats = stats
        self._requests = requests
        self._model = info.served_model_names[0]

    def collect(self) -> Iterable[Metric]:
        """All series."""
        yield from self._gauges()
        yield from self._counters()
        yield from self._speculation()
        yield from self._histograms()
        yield from self._labelled()
        yield from self._own()
        if self._stats.slo is not None:
            yield from self._slo(self._stats.slo)

    def _gauges(self) -> Iterator[Metric]:
        stats = self._stats
        yield self._gauge("vllm:num_requests_running", "Requests running.", stats.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Requests waiting.", stats.num_waiting)
        usage = stats.num_held_blocks / max(stats.num_blocks, 1)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV blocks held, 0 to 1.", usage)
        reasons = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason", "Requests waiting, by reason.", labels=(*_LABELS, "reason")
        )
        reasons.add_metric((self._model, ENGINE, "capacity"), stats.num_waiting)
        reasons.add_metric((self._model, ENGINE, "deferred"), 0)
        yield reasons
        cache = {"block_size": str(self._info.block_size), "num_gpu_blocks": str(self._info.num_blocks)}
        config = GaugeMetricFamily("vllm:cache_config_info", "The KV cache.", labels=("engine", *cache))
        config.add_metric((ENGINE, *cache.values()), 1)
        yield config

    def _counters(self) -> Iterator[Metric]:
        stats, requests = self._stats, self._requests
        for name, text, value in (
            ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_queries),
            ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_hits),
            ("vllm:num_preemptions", "Requests sent back to the queue.", stats.num_preemptions),
            ("vllm:prompt_tokens", "Prompt tokens of requests that were answered.", requests.prompt_tokens.total),
            ("vllm:prompt_tokens_cached", "Of them, found in the prefix cache.", requests.cached_tokens),
            ("vllm:generation_tokens", "Tokens generated.", stats.generated_tokens),
        ):
            yield self._counter(name, text, value)

    def _speculation(self) -> Iterator[Metric]:
        stats = self._stats
        for name, text, value in (
            ("vllm:spec_decode_num_drafts", "Drafts verified.", stats.num_drafts),
            ("vllm:spec_decode_num_draft_tokens", "Draft tokens verified.", stats.num_draft_tokens),
            ("vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted.", stats.num_accepted_tokens),
        ):
            yield self._counter(name, text, value)
        positions = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by position.",
            labels=(*_LABELS, "position"),
        )
        for position, count in enumerate(stats.accepted_per_position):
            positions.add_metric((self._model, ENGINE, str(position)), count)
        yield positions

    def _histograms(self) -> Iterator[Metric]:
        requests = self._requests
        for name, text, values in (
            ("vllm:time_to_first_token_seconds", "Time to first token.", requests.first_token_s),
            ("vllm:inter_token_latency_seconds", "Time between pieces of an answer.", requests.token_gap_s),
            ("vllm:request_time_per_output_token_seconds", "Mean time a token, per answer.", requests.time_per_token_s),
            ("vllm:e2e_request_latency_seconds", "Arrival to end.", requests.end_to_end_s),
            ("vllm:request_queue_time_seconds", "Arrival to first scheduled.", requests.queue_s),
            ("vllm:request_inference_time_seconds", "First scheduled to last token.", requests.inference_s),
            ("vllm:request_prefill_time_seconds", "First scheduled to first token.", requests.prefill_s),
            ("vllm:request_decode_time_seconds", "First token to last.", requests.decode_s),
            ("vllm:request_prompt_tokens", "Prompt tokens a request.", requests.prompt_tokens),
            ("vllm:request_generation_tokens", "Tokens an answer.", requests.generation_tokens),
            ("vllm:request_max_num_generation_tokens", "Longest answer of a request.", requests.max_generation_tokens),
            ("vllm:request_params_max_tokens", "max_tokens asked for.", requests.params_max_tokens),
            ("vllm:request_params_n", "n asked for.", requests.params_n),
            (
                "vllm:request_prefill_kv_computed_tokens",
                "Prompt tokens computed, cached ones excluded.",
                requests.prefill_computed_tokens,
            ),
        ):
            yield self._histogram(name, text, values.bounds, values.counts, values.total)
        yield self._iterations()

    def _iterations(self) -> Metric:
        stats = self._stats
        histogram = Histogram(ITERATION_TOKENS)
        for num_tokens, num_steps in stats.iteration_tokens.items():
            histogram.counts[bisect_left(histogram.bounds, num_tokens)] += num_steps
        # Each decoding row feeds its last token and its drafts, and commits one more token than were accepted.
        total = (
            stats.prompt_tokens_computed + stats.generated_tokens - stats.num_accepted_tokens + stats.num_draft_tokens
        )
        return self._histogram(
            "vllm:iteration_tokens_total", "Tokens a step.", histogram.bounds, histogram.counts, float(total)
        )

    def _labelled(self) -> Iterator[Metric]:
        success = CounterMetricFamily(
            "vllm:request_success", "Answers ended, by reason.", labels=(*_LABELS, "finished_reason")
        )
        for reason in FinishReason:
            success.add_metric((self._model, ENGINE, reason), self._requests.finished[reason])
        yield success
        refused = CounterMetricFamily(
            "vllm:admission_rejections", "Requests refused before they ran.", labels=("model_name", "reason")
        )
        for why, count in self._requests.rejections.items():
            refused.add_metric((self._model, why), count)
        yield refused

    def _own(self) -> Iterator[Metric]:
        stats = self._stats
        for name, text, value in (
            ("threefold:steps", "Steps run.", stats.num_steps),
            ("threefold:step_seconds", "Time in steps.", stats.step_s),
            ("threefold:schedule_seconds", "Of it, planning and committing.", stats.schedule_s),
            (
                "threefold:computed_prompt_tokens",
                "Prompt tokens computed, again included.",
                stats.prompt_tokens_computed,
            ),
            ("threefold:recomputed_tokens", "Tokens whose KV was lost to preemption.", stats.recomputed_tokens),
            ("threefold:request_errors", "Requests ended by a fault of their own.", stats.num_request_errors),
            ("threefold:draft_faults", "Drafters that raised or proposed nonsense.", stats.num_draft_faults),
            ("threefold:aborted_tokens", "Generated for answers nobody waited for.", self._requests.aborted_tokens),
        ):
            yield self._counter(name, text, value)
        yield self._gauge(
            "threefold:speculation_gain_ratio",
            "Estimated tokens per second with drafts over without, lately.",
            stats.speculation_gain_ratio,
        )
        yield self._gauge(
            "threefold:speculation_gain_error", "Standard error of that estimate.", stats.speculation_gain_error
        )
        by_drafter = GaugeMetricFamily(
            "threefold:speculation_drafter_gain_ratio",
            "The same for each drafter's drafts alone.",
            labels=(*_LABELS, "drafter"),
        )
        for drafter, ratio in stats.gain_by.items():
            by_drafter.add_metric((self._model, ENGINE, drafter), ratio)
        yield by_drafter
        yield self._by_drafter("threefold:draft_tokens", "Draft tokens verified, by drafter.", stats.drafted_by)
        yield self._by_drafter(
            "threefold:accepted_draft_tokens", "Draft tokens accepted, by drafter.", stats.accepted_by
        )
        yield self._gauge("threefold:cached_blocks", "Free KV blocks that a prefix can reuse.", stats.num_cached_blocks)

    def _slo(self, slo: SloStats) -> Iterator[Metric]:
        yield self._counter("threefold:slo_shed_requests", "Refused: the first token would come late.", slo.num_shed)
        targets = (("ttft", slo.ttft_target_ms), ("tpot", slo.tpot_target_ms))
        for name, target_ms in targets:
            if target_ms is not None:
                yield self._gauge(f"threefold:slo_{name}_target_seconds", "Latency target.", target_ms / 1000)
        for name, text, value in (
            ("predicted_ttft_seconds", "First token forecast for the last request.", slo.predicted_ttft_ms / 1000),
            ("running_limit", "Running requests that the targets allow, 0 = not known yet.", slo.running_limit),
            ("step_error_ratio", "Real over predicted step time, as nine runs of ten keep it.", slo.step_error),
            ("ttft_error_ratio", "Real over forecast first token, 98th percentile.", slo.ttft_error),
            ("ttft_attained_ratio", "Of the last answers, those whose first token kept it.", slo.ttft_attained),
            ("tpot_attained_ratio", "Of the last answers, those whose pace kept it.", slo.tpot_attained),
        ):
            yield self._gauge(f"threefold:slo_{name}", text, value)

    def _by_drafter(self, name: str, text: str, counts: dict[str, int]) -> Metric:
        family = CounterMetricFamily(name, text, labels=(*_LABELS, "drafter"))
        for drafter, count in counts.items():
            family.add_metric((self._model, ENGINE, drafter), count)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=_LABELS)
        family.add_metric((self._model, ENGINE), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=_LABELS)
        family.add_metric((self._model, ENGINE), value)
        return family

    def _histogram(self, name: str, text: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> Metric:
        family = HistogramMetricFamily(name, text, labels=_LABELS)
        ends = [*(repr(float(bound)) for bound in bounds), "+Inf"]
        rising = []
        so_far = 0
        for end, count in zip(ends, counts, strict=True):
            so_far += count
            rising.append((end, so_far))
        family.add_metric((self._model, ENGINE), buckets=rising, sum_value=total)
        return family
