"""Where a step's time goes: planning, launching, waiting, committing, sending, and how long the card stands idle.

Runs so many requests at once that never end, beside them perhaps a prompt a step, times every step, and on a card tells
a few more steps apart by kernel. The load is made up: with speculation on, what it drafts means nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from threefold.bench.offline import let_stand
from threefold.bench.passing import PassingExecutor
from threefold.bench.report import WIDTH
from threefold.bench.step_parts import BETWEEN, parts_of
from threefold.bench.steps_options import StepsOptions
from threefold.config import EngineConfig
from threefold.engine import wire
from threefold.engine.build import build_engine
from threefold.engine.core import EngineCore
from threefold.engine.outputs import EngineInfo
from threefold.errors import ConfigError
from threefold.request import Request, SamplingParams
from threefold.step import Executor, StepResult

SPARE_TOKENS = 64
"""Room for drafts that pass, so that no request ends before the last step."""
_COLUMNS = ("plan_ms", "launch_ms", "wait_ms", "commit_ms", "stream_ms", "step_ms", "device_ms", "draft_ms", "idle_ms")


@dataclass(frozen=True, slots=True)
class StepLine:
    """One call of the engine's step, milliseconds; the host's times overlap the device's."""

    tokens: int
    """Tokens that came out."""
    plan_ms: float
    launch_ms: float
    wait_ms: float
    """For the device, tokens' way back and proposing drafts included."""
    commit_ms: float
    stream_ms: float
    """Packing what came out for another process."""
    step_ms: float
    """All of it, from one step to the next."""
    device_ms: float
    """The device's work on the step that was collected."""
    draft_ms: float
    """Proposing behind it; where drafts are made while the host commits, the device's work on them before it."""
    idle_ms: float
    """The device's rest before that; 0 where it is not known."""


class DeviceTimes(PassingExecutor):
    """Passes plans on to an executor and keeps the device's times of the last result.

    Attributes:
        forward_ms: of the last step collected.
        draft_ms: of its drafts, or of those before it.
        idle_ms: before it.
    """

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor)
        self.forward_ms = 0.0
        self.draft_ms = 0.0
        self.idle_ms = 0.0

    def collect(self) -> StepResult:
        """The oldest step's result, its times noted."""
        result = super().collect()
        self.forward_ms, self.draft_ms, self.idle_ms = result.forward_ms, result.draft_ms, result.idle_ms
        return result


def bench_steps(asked: StepsOptions, config: EngineConfig) -> dict[str, Any]:
    """Build the engine and time its steps.

    Raises:
        OperatorError: the engine cannot be built, or has no room for the load.
    """
    core, info = build_engine(config)
    device = DeviceTimes(core.executor)
    core.executor = device
    try:
        load = Load(core, info, asked)
        _run(core, device, load, asked.warmups)
        let_stand()
        lines = _run(core, device, load, asked.steps)
        parts = parts_of(lambda: _run(core, device, load, asked.profile_steps), asked.profile_steps)
        if parts:
            parts[BETWEEN] = statistics.median(line.device_ms + line.draft_ms for line in lines) - sum(parts.values())
    finally:
        core.close()
    return {
        "benchmark": "steps",
        "model_id": info.model,
        "engine": list(info.notes),
        "rows": asked.rows,
        "input_len": asked.input_len,
        "prompt_len": asked.prompt_len,
        "temperature": asked.temperature,
        **summary(lines),
        "parts_ms": parts,
        "steps": [asdict(line) for line in lines],
    }


def summary(lines: Sequence[StepLine]) -> dict[str, Any]:
    """Medians and 99th percentiles of each column, and tokens a second."""
    found: dict[str, Any] = {}
    for column in _COLUMNS:
        values = [getattr(line, column) for line in lines]
        found[f"median_{column}"] = statistics.median(values)
        found[f"p99_{column}"] = float(np.percentile(values, 99))
    seconds = sum(line.step_ms for line in lines) / 1000
    return {**found, "num_steps": len(lines), "output_throughput": sum(line.tokens for line in lines) / seconds}


def steps_lines(result: dict[str, Any]) -> list[str]:
    """The result for a terminal."""
    figures = [
        ("Rows:", f"{result['rows']}"),
        ("Steps:", f"{result['num_steps']}"),
        ("Output token throughput (tok/s):", f"{result['output_throughput']:.1f}"),
    ]
    for column in _COLUMNS:
        name = column.removesuffix("_ms").capitalize()
        figures.append((f"{name}, median (ms):", f"{result[f'median_{column}']:.3f}"))
        figures.append((f"{name}, P99 (ms):", f"{result[f'p99_{column}']:.3f}"))
    figures += [(f"A step's {name} (ms):", f"{ms:.3f}") for name, ms in result["parts_ms"].items()]
    title = " Steps Benchmark Result ".center(WIDTH, "=")
    return [title, *(f"{label:<40} {value}" for label, value in figures), "=" * WIDTH]


class Load:
    """Rows that run all the time, their prompts already fed, and what comes beside them.

    Args:
        core: idle; the rows are added to it.
        info: its sizes.
        asked: which rows.

    Raises:
        ConfigError: the engine has no room for them.
    """

    def __init__(self, core: EngineCore, info: EngineInfo, asked: StepsOptions) -> None:
        self._core = core
        self._asked = asked
        self._vocab_size = info.vocab_size
        self._dice = np.random.default_rng(asked.seed)
        num_steps = asked.steps + asked.warmups + asked.profile_steps + 2
        self._least = asked.input_len + num_steps
        self._num_requests = 0
        most = self._most_tokens(info)
        total = min(asked.input_len + num_steps * (1 + SPARE_TOKENS), most)
        for _ in range(asked.rows):
            self._add(asked.input_len, None, total)
        started: set[int] = set()
        while len(started) < asked.rows:
            started.update(delta.request_id for delta in core.step())

    def _most_tokens(self, info: EngineInfo) -> int:
        """Room for each row; prompts that come and go have as much as they need, two at a time."""
        asked, block_size = self._asked, info.block_size
        num_guests = 2 if asked.prompt_len else 0
        guest_blocks = num_guests * -(-(asked.prompt_len + 1) // block_size)
        most = min(info.max_model_len, (info.num_blocks - guest_blocks) * block_size // asked.rows)
        rows = asked.rows + num_guests
        if rows > info.max_num_seqs or most < self._least or asked.prompt_len >= info.max_model_len:
            raise ConfigError(
                f"{asked.rows} rows of {self._least} tokens do not fit"
                f"{f' beside prompts of {asked.prompt_len}' if num_guests else ''}: the engine runs "
                f"{info.max_num_seqs} requests at once, with {most} tokens each; lower --rows, --input-len or --steps"
            )
        return most

    def _add(self, num_tokens: int, max_tokens: int | None, total: int) -> None:
        prompt = self._dice.integers(0, self._vocab_size, num_tokens).tolist()
        params = SamplingParams(
            max_tokens=max_tokens, temperature=self._asked.temperature, ignore_eos=True, seed=self._asked.seed
        )
        request = Request(self._num_requests, prompt, params, max_total_tokens=total, end_token_ids=frozenset())
        self._num_requests += 1
        self._core.add_request(request)

    def arrive(self) -> None:
        """A prompt comes, where the load has some."""
        if self._asked.prompt_len:
            self._add(self._asked.prompt_len, 1, self._asked.prompt_len + 1)


def _run(core: EngineCore, device: DeviceTimes, load: Load, num_steps: int) -> list[StepLine]:
    lines = []
    ended_s = time.perf_counter()
    for _ in range(num_steps):
        began_s = ended_s
        load.arrive()
        deltas = core.step()
        stepped_s = time.perf_counter()
        if not deltas:
            raise ConfigError("the requests ended before all steps were timed: drafts passed; ask for fewer --steps")
        wire.encode(wire.pack_step(deltas))
        ended_s = time.perf_counter()
        times = core.times
        lines.append(
            StepLine(
                tokens=sum(len(delta.token_ids) for delta in deltas),
                plan_ms=times.plan_s * 1e3,
                launch_ms=times.launch_s * 1e3,
                wait_ms=times.wait_s * 1e3,
                commit_ms=times.commit_s * 1e3,
                stream_ms=(ended_s - stepped_s) * 1e3,
                step_ms=(ended_s - began_s) * 1e3,
                device_ms=device.forward_ms,
                draft_ms=device.draft_ms,
                idle_ms=device.idle_ms,
            )
        )
    return lines
