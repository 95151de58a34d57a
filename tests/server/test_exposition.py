from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from threefold.metrics import EngineStats, SloStats

ASK = {"prompt": "abc", "max_tokens": 3, "n": 2}


async def samples_of(served, accept="text/plain"):
    reply = await served.http.get("/metrics", headers={"accept": accept})
    assert reply.status_code == 200
    families = list(text_string_to_metric_families(reply.text))
    kinds = {family.name: family.type for family in families}
    samples = {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}
    return kinds, samples


def value(samples, name, **labels):
    full = frozenset({"model_name": "fake-model", "engine": "0", **labels}.items())
    return samples[name, full]


async def test_engine_counters_have_vllms_names(serve, client):
    client.figures = EngineStats(
        num_running=3,
        num_waiting=2,
        num_blocks=100,
        num_held_blocks=25,
        generated_tokens=77,
        prefix_queries=40,
        prefix_hits=10,
        num_preemptions=1,
        prompt_tokens_computed=30,
        num_drafts=8,
        num_draft_tokens=20,
        num_accepted_tokens=12,
        accepted_per_position=[8, 4],
        schedule_s=0.5,
        speculation_gain_ratio=1.25,
        speculation_gain_error=0.125,
        drafted_by={"ngram": 15, "suffix": 5},
        accepted_by={"ngram": 9, "suffix": 3},
        iteration_tokens={1: 5, 2: 1, 64: 2, 32768: 1},
    )
    async with serve() as served:
        kinds, samples = await samples_of(served)
    assert value(samples, "vllm:num_requests_running") == 3
    assert value(samples, "vllm:num_requests_waiting_by_reason", reason="capacity") == 2
    assert value(samples, "vllm:kv_cache_usage_perc") == 0.25
    assert value(samples, "vllm:generation_tokens_total") == 77
    assert value(samples, "vllm:prefix_cache_hits_total") == 10
    assert value(samples, "vllm:spec_decode_num_accepted_tokens_per_pos_total", position="1") == 4
    assert value(samples, "threefold:speculation_gain_ratio") == 1.25
    assert value(samples, "threefold:speculation_gain_error") == 0.125
    assert value(samples, "threefold:draft_tokens_total", drafter="ngram") == 15
    assert value(samples, "threefold:accepted_draft_tokens_total", drafter="suffix") == 3
    assert value(samples, "threefold:schedule_seconds_total") == 0.5
    assert kinds["vllm:iteration_tokens_total"] == "histogram"
    assert value(samples, "vllm:iteration_tokens_total_bucket", le="1.0") == 5
    assert value(samples, "vllm:iteration_tokens_total_bucket", le="8.0") == 6
    assert value(samples, "vllm:iteration_tokens_total_bucket", le="+Inf") == 9
    config = {"block_size": "16", "num_gpu_blocks": "100", "engine": "0"}
    assert samples["vllm:cache_config_info", frozenset(config.items())] == 1


async def test_requests_are_measured(serve):
    async with serve() as served:
        await served.http.post("/v1/completions", json=ASK)
        await served.http.post("/v1/completions", json={**ASK, "stream": True})
        kinds, samples = await samples_of(served)
    assert value(samples, "vllm:time_to_first_token_seconds_count") == 4
    assert value(samples, "vllm:inter_token_latency_seconds_count") == 8
    assert value(samples, "vllm:request_time_per_output_token_seconds_count") == 4
    assert value(samples, "vllm:request_queue_time_seconds_sum") == pytest.approx(0.004)
    assert value(samples, "vllm:request_prompt_tokens_sum") == 6
    assert value(samples, "vllm:request_generation_tokens_sum") == 12
    assert value(samples, "vllm:prompt_tokens_total") == 6
    assert value(samples, "vllm:prompt_tokens_cached_total") == 8
    assert value(samples, "vllm:request_params_n_bucket", le="2.0") == 2
    assert value(samples, "vllm:request_success_total", finished_reason="length") == 4
    assert value(samples, "vllm:time_to_first_token_seconds_bucket", le="2560.0") == 4
    assert kinds["vllm:request_success"] == "counter"


async def test_faults_and_refusals_are_counted(serve, client):
    async with serve() as served:
        client.fault_after = 2
        await served.http.post("/v1/completions", json=ASK)
        await served.http.post("/v1/completions", json={**ASK, "stream": True})
        client.is_full = True
        await served.http.post("/v1/completions", json=ASK)
        _, samples = await samples_of(served)
    assert value(samples, "vllm:request_success_total", finished_reason="error") == 4
    assert value(samples, "threefold:aborted_tokens_total") == 8
    refused = {"model_name": "fake-model", "reason": "queue_full"}
    assert samples["vllm:admission_rejections_total", frozenset(refused.items())] == 1


async def test_openmetrics_by_accept_and_a_dead_engine(serve, client):
    async with serve() as served:
        reply = await served.http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
        assert reply.headers["content-type"].startswith("application/openmetrics-text")
        assert reply.text.endswith("# EOF\n")
        reply = await served.http.get("/metrics")
        assert reply.headers["content-type"].startswith("text/plain; version=")
        client.is_alive = False
        reply = await served.http.get("/metrics")
        assert reply.status_code == 200
        assert "vllm:request_success_total" in reply.text


async def test_latency_targets_have_series_only_where_there_are_any(serve, client):
    async with serve() as served:
        _, samples = await samples_of(served)
        assert not [name for name, _ in samples if "slo" in name]
        client.figures = EngineStats(
            slo=SloStats(
                tpot_target_ms=50.0,
                num_shed=7,
                predicted_ttft_ms=1500.0,
                running_limit=24,
                step_error=1.25,
                tpot_attained=0.75,
            )
        )
        _, samples = await samples_of(served)
    assert value(samples, "threefold:slo_shed_requests_total") == 7
    assert value(samples, "threefold:slo_tpot_target_seconds") == 0.05
    assert value(samples, "threefold:slo_predicted_ttft_seconds") == 1.5
    assert value(samples, "threefold:slo_running_limit") == 24
    assert value(samples, "threefold:slo_step_error_ratio") == 1.25
    assert value(samples, "threefold:slo_tpot_attained_ratio") == 0.75
    assert not [name for name, _ in samples if name == "threefold:slo_ttft_target_seconds"]
