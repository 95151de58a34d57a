"""How fast the controller follows a load that changes at once: few users, many, few again, step by step.

Users who leave close their connection, so that the load really drops in one step. Knows nothing about how drafts are
chosen: it reads plans as they go by.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from threefold.bench.load_options import LoadOptions
from threefold.bench.offline import OfflineLoad, let_stand
from threefold.bench.passing import PassingExecutor
from threefold.bench.report import WIDTH
from threefold.bench.step_load_options import StepLoadOptions
from threefold.bench.workload import Workload, load_workload
from threefold.config import EngineConfig
from threefold.engine.build import build_engine, make_tokenizer
from threefold.engine.core import EngineCore
from threefold.errors import ConfigError
from threefold.step import Executor, StepPlan, StepResult

WINDOW_STEPS = 10
"""Steps of the running mean."""
TOLERANCE = 0.2
"""The running mean has settled within this share of its later value …"""
LEAST_TOLERANCE = 0.1
"""… or within so many drafts a row, where that value is next to nothing."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step."""

    users: int
    """Users there are."""
    rows: int
    """Rows that ran."""
    committing: int
    """Of them, rows that committed tokens: the others are still at their prompt."""
    tokens: int
    """Tokens fed, drafts included."""
    admitted: int
    """Drafts verified."""
    asked: int
    """Drafts that the controller asked for, for the step after."""
    committed: int
    """Tokens that came out."""
    ms: float
    """Time of the step."""


class RecordingExecutor(PassingExecutor):
    """Runs plans on another executor and notes what went by.

    Attributes:
        users: to be written down with each step.
        records: the steps so far.
    """

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor)
        self.users = 0
        self.records: list[StepRecord] = []
        self._launched: deque[tuple[StepPlan, float]] = deque()

    def launch(self, plan: StepPlan) -> None:
        """Begin a step."""
        began_s = time.perf_counter()
        super().launch(plan)
        self._launched.append((plan, began_s))

    def collect(self) -> StepResult:
        """The oldest step's result, noted."""
        result = super().collect()
        plan, began_s = self._launched.popleft()
        self.records.append(
            StepRecord(
                users=self.users,
                rows=len(plan.rows),
                committing=sum(plan.columns.wants_token),
                tokens=plan.num_tokens,
                admitted=plan.num_drafts,
                asked=plan.num_asked,
                committed=sum(len(row.token_ids) for row in result.rows),
                ms=1e3 * (time.perf_counter() - began_s),
            )
        )
        return result


def bench_step_load(asked: StepLoadOptions, config: EngineConfig) -> dict[str, Any]:
    """Build the engine, let users come and go, return every step.

    Raises:
        OperatorError: the engine cannot be built, or what is asked cannot hold.
    """
    if asked.dataset is None:
        raise ConfigError('--dataset FILE is needed: JSON lines such as {"prompt": "…"}, or Spec-Bench\'s')
    workload = load_workload(Path(asked.dataset), group=asked.group, seed=asked.shuffle_seed)
    core, info = build_engine(config)
    if max(asked.users) > info.max_num_seqs:
        raise ConfigError(
            f"--users {max(asked.users)}: the engine runs at most {info.max_num_seqs} requests at once; "
            f"ask for fewer users or --max-num-seqs {max(asked.users)}"
        )
    recorder = RecordingExecutor(core.executor)
    core.executor = recorder
    options = LoadOptions(max_tokens=asked.max_tokens, ignore_eos=True, shuffle_seed=asked.shuffle_seed)
    load = OfflineLoad(core, info, options, make_tokenizer(info))
    let_stand()
    try:
        _drive(load, recorder, workload, asked)
    finally:
        load.leave(0)
        core.close()
    return {
        "benchmark": "step-load",
        "model_id": info.model,
        "engine": list(info.notes),
        "dataset": workload.dataset,
        "dataset_sha256": workload.dataset_sha256,
        "group": asked.group,
        "max_tokens": asked.max_tokens,
        "num_failed": sum(1 for outcome in load.outcomes if outcome.error),
        "changes": changes(recorder.records),
        **_speculation_of(core),
        "steps": [asdict(record) for record in recorder.records],
    }


def changes(records: Sequence[StepRecord]) -> list[dict[str, Any]]:
    """Each change of the number of users, and how drafts followed it: those verified and those asked for.

    What is verified hangs on the text too: a drafter that finds nothing offers nothing. What is asked for does not.
    """
    starts = [0, *(place for place, (a, b) in enumerate(pairwise(records), start=1) if a.users != b.users)]
    phases = [records[start:end] for start, end in zip(starts, [*starts[1:], len(records)], strict=True)]
    found = []
    for start, (before, phase) in zip(starts[1:], pairwise(phases), strict=True):
        rows = [record.committing for record in phase]
        in_place = [step for step, record in enumerate(phase, start=1) if record.committing >= record.users]
        found.append(
            {
                "at_step": start,
                "from": before[0].users,
                "to": phase[0].users,
                "rows_in_place_after_steps": in_place[0] if in_place else None,
                "admitted": settling([record.admitted for record in phase], rows),
                "asked": settling([record.asked for record in phase], rows),
            }
        )
    return found


def settling(counts: Sequence[int], rows: Sequence[int]) -> dict[str, Any]:
    """When a count a row settled, in a phase in which the number of users stands still.

    Args:
        counts: of each step.
        rows: rows that committed tokens in it.

    Returns:
        steady_per_row: mean over the second half. settled_after_steps: the first step at which the running mean over
        WINDOW_STEPS, all of them in this phase, is as near as TOLERANCE to it; None = never. share_within: of the
        windows from there on, how many are as near.
    """
    half = len(counts) // 2
    steady = sum(counts[half:]) / max(sum(rows[half:]), 1)
    is_near = np.abs(running_mean(counts, rows) - steady) <= max(TOLERANCE * steady, LEAST_TOLERANCE)
    near = np.flatnonzero(is_near)
    return {
        "steady_per_row": steady,
        "settled_after_steps": int(near[0]) + WINDOW_STEPS if len(near) else None,
        "share_within": float(is_near[near[0] :].mean()) if len(near) else 0.0,
    }


def running_mean(counts: Sequence[int], rows: Sequence[int]) -> np.ndarray:
    """A count a row over each WINDOW_STEPS steps, [num_steps - WINDOW_STEPS + 1]; empty for fewer steps than that."""
    if len(counts) < WINDOW_STEPS:
        return np.zeros(0)
    window = np.ones(WINDOW_STEPS)
    means: np.ndarray = np.convolve(counts, window, "valid") / np.maximum(np.convolve(rows, window, "valid"), 1.0)
    return means


def step_load_lines(result: dict[str, Any]) -> list[str]:
    """The result for a terminal."""
    lines = [" Step Load Result ".center(WIDTH, "=")]
    for change in result["changes"]:
        lines.append(f"{change['from']} to {change['to']} users".center(WIDTH, "-"))
        lines.append(f"{'All rows past their prompt (steps):':<40} {_or_never(change['rows_in_place_after_steps'])}")
        for what in ("admitted", "asked"):
            found = change[what]
            lines += [
                f"{f'Drafts {what} settled after (steps):':<40} {_or_never(found['settled_after_steps'])}",
                f"{f'Drafts {what} a row once steady:':<40} {found['steady_per_row']:.2f}",
                f"{'  Within the band since (%):':<40} {100 * found['share_within']:.0f}",
            ]
    return [*lines, "=" * WIDTH]


def _or_never(steps: int | None) -> str:
    return "never" if steps is None else str(steps)


def _drive(load: OfflineLoad, recorder: RecordingExecutor, workload: Workload, asked: StepLoadOptions) -> None:
    for num_users in asked.users:
        load.leave(num_users)
        recorder.users = num_users
        end = len(recorder.records) + asked.steps
        while len(recorder.records) < end:
            if len(load.waiting) < num_users:
                load.queue(workload)
            load.step(num_users)
            if not load.running and load.outcomes and load.outcomes[-1].error:
                raise ConfigError(f"no request can be answered: {load.outcomes[-1].error}")


def _speculation_of(core: EngineCore) -> dict[str, Any]:
    stats = core.stats()
    return {
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        "gain_ratio": stats.speculation_gain_ratio,
        "gain_error": stats.speculation_gain_error,
    }
