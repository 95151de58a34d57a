"""The control half alone: what plan and commit cost a row and step, with an executor that computes nothing."""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

from threefold.bench.alone_options import ControlOptions
from threefold.bench.report import WIDTH
from threefold.cache.manager import CacheManager
from threefold.draft.policy import FixedDrafts, NoDrafts
from threefold.request import Request, SamplingParams
from threefold.schedule.scheduler import Scheduler
from threefold.testing.fake_executor import FakeDrafts, FakeExecutor

_BLOCK_SIZE = 16
_DRAFT_ACCURACY = 0.6


def bench_control(asked: ControlOptions) -> dict[str, Any]:
    """Time plan and commit over steps in which every row runs.

    Returns:
        Microseconds a row and step: medians over repeats of each repeat's median over steps, and every repeat's.
    """
    repeats = [_repeat(asked, seed) for seed in range(asked.repeats)]
    plan_us, commit_us = [repeat[0] for repeat in repeats], [repeat[1] for repeat in repeats]
    totals = [plan + commit for plan, commit in repeats]
    return {
        "rows": asked.rows,
        "steps": asked.steps,
        "drafts": asked.drafts,
        "plan_us_per_row": statistics.median(plan_us),
        "commit_us_per_row": statistics.median(commit_us),
        "total_us_per_row": statistics.median(totals),
        "plan_us_per_row_repeats": plan_us,
        "commit_us_per_row_repeats": commit_us,
    }


def control_lines(result: dict[str, Any]) -> list[str]:
    """The result for a terminal."""
    figures = (
        ("Rows:", f"{result['rows']}"),
        ("Steps a repeat:", f"{result['steps']}"),
        ("Drafts a row and step:", f"{result['drafts']}"),
        ("Plan (us a row and step):", f"{result['plan_us_per_row']:.2f}"),
        ("Commit (us a row and step):", f"{result['commit_us_per_row']:.2f}"),
        ("Plan + commit (us a row and step):", f"{result['total_us_per_row']:.2f}"),
    )
    title = " Control Benchmark Result ".center(WIDTH, "=")
    return [title, *(f"{label:<40} {value}" for label, value in figures), "=" * WIDTH]


def _repeat(asked: ControlOptions, seed: int) -> tuple[float, float]:
    """Median microseconds a row of plan and of commit in one fresh scheduler."""
    scheduler, executor = _build(asked, seed)
    plan_us: list[float] = []
    commit_us: list[float] = []
    gc.collect()
    while len(plan_us) < asked.steps and scheduler.has_work:
        began = time.perf_counter_ns()
        plan = scheduler.plan()
        planned = time.perf_counter_ns()
        assert plan is not None  # blocks and budget suffice for every row
        result = executor.run(plan)
        ran = time.perf_counter_ns()
        scheduler.commit(plan, result)
        committed = time.perf_counter_ns()
        if len(plan.rows) == asked.rows and not plan.new_rows:  # not the prompts' steps
            plan_us.append((planned - began) / 1e3 / asked.rows)
            commit_us.append((committed - ran) / 1e3 / asked.rows)
    return statistics.median(plan_us), statistics.median(commit_us)


def _build(asked: ControlOptions, seed: int) -> tuple[Scheduler, FakeExecutor]:
    max_tokens = (asked.steps + 2) * (1 + asked.drafts)
    blocks_per_row = -(-(asked.prompt_tokens + max_tokens + asked.drafts) // _BLOCK_SIZE) + 1
    scheduler = Scheduler(
        CacheManager(asked.rows * blocks_per_row, _BLOCK_SIZE, enable_prefix_caching=True),
        FixedDrafts(asked.drafts) if asked.drafts else NoDrafts(),
        max_num_seqs=asked.rows,
        max_num_batched_tokens=asked.rows * max(asked.prompt_tokens, 1 + asked.drafts),
    )
    for request_id in range(asked.rows):
        prompt = [(seed + request_id * 7919 + position * 104729) % 256 for position in range(asked.prompt_tokens)]
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        total = asked.prompt_tokens + max_tokens
        scheduler.add(Request(request_id, prompt, params, max_total_tokens=total, end_token_ids=frozenset()))
    drafts = FakeDrafts(_DRAFT_ACCURACY, seed=seed) if asked.drafts else None
    return scheduler, FakeExecutor(drafts=drafts)
