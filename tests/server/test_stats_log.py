from __future__ import annotations

import asyncio
import logging

from threefold.metrics import EngineStats, SloStats
from threefold.server.stats_log import log_stats, stats_lines


def test_lines_are_worded_for_those_who_grep():
    before = EngineStats(num_steps=1, generated_tokens=100, accepted_per_position=[1])
    now = EngineStats(
        num_steps=9,
        generated_tokens=300,
        prompt_tokens_computed=50,
        num_running=2,
        num_blocks=10,
        num_held_blocks=5,
        prefix_queries=8,
        prefix_hits=2,
        num_drafts=4,
        num_draft_tokens=8,
        num_accepted_tokens=6,
        accepted_per_position=[5, 2],
        speculation_gain_ratio=1.234,
        speculation_gain_error=0.02,
    )
    load, drafts = stats_lines(before, now, 10.0)
    assert load == (
        "Avg prompt throughput: 5.0 tokens/s, Avg generation throughput: 20.0 tokens/s, Running: 2 reqs, "
        "Waiting: 0 reqs, KV cache usage: 50.0%, Prefix cache hit rate: 25.0%"
    )
    assert "Mean acceptance length: 2.50" in drafts
    assert "Per-position acceptance rate: 1.000, 0.500" in drafts
    assert "Avg Draft acceptance rate: 75.0%, Gain: 1.23 ± 0.02" in drafts


def test_idle_servers_are_silent():
    assert stats_lines(EngineStats(num_steps=5), EngineStats(num_steps=5), 10.0) == []
    assert len(stats_lines(EngineStats(), EngineStats(num_waiting=1), 10.0)) == 1


async def test_logging_ends_with_the_engine(client, caplog):
    with caplog.at_level(logging.INFO, logger="threefold.stats"):
        logging_task = asyncio.create_task(log_stats(client, 0.01))
        await asyncio.sleep(0.05)
        client.is_alive = False
        await asyncio.wait_for(logging_task, 5)
    assert "Running: 2 reqs, Waiting: 1 reqs" in caplog.text


def test_latency_targets_have_a_line_of_their_own():
    before = EngineStats(slo=SloStats(tpot_target_ms=50.0, num_shed=3))
    slo = SloStats(tpot_target_ms=50.0, num_shed=8, running_limit=24, predicted_ttft_ms=1234.5, tpot_attained=0.975)
    _, line = stats_lines(before, EngineStats(num_running=1, slo=slo), 10.0)
    assert line == ("SLO: TPOT 50 ms kept by 97.5%, Running limit: 24, Predicted TTFT: 1234 ms, Refused: 5 reqs")
