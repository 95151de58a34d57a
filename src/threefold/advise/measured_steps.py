"""What steps of a running engine take beyond the cost curve: plain ones, ones that ask for drafts, ones that verify.

The curve holds best times of forward passes, perhaps of another day. A running engine's steps take the middle of what
they take, and the host plans, samples, asks and verifies; all that is measured as one, by whole steps. Drafts are made
by the real drafter and weighed by the real controller, but all of them are taken and all hold, whatever the model says.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from threefold.advise.curve_executor import Host
from threefold.config import SpeculationConfig
from threefold.cost import CostCurve, StepShape
from threefold.draft.controller import Controller
from threefold.draft.policy import DraftPolicy, NoDrafts, RowDraft
from threefold.engine.core import EngineCore
from threefold.engine.loaded import LoadedEngine
from threefold.engine.outputs import EngineInfo
from threefold.least_squares import non_negative
from threefold.request import Request, SamplingParams

PROMPT_TOKENS = 32
NUM_STEPS = 16
"""Steps of a kind …"""
NUM_WARM = 2
"""… of which the first do not count."""
LEAST_STEPS = 3
"""Fewer alike say nothing."""
ROWS = (1, 4, 16, 64, 256)
DRAFT_ROWS = (1, 8)
LENGTHS = (1, 4, 8)
"""Drafts a row."""
NEVER = 64
"""No made-up text repeats so many tokens, so a drafter that looks for as many is asked in vain."""


class StepTimes(NamedTuple):
    """What steps take beyond the curve; None = there is no drafter to measure it with."""

    plain: Host
    asking: Host | None = None
    verifying: Host | None = None


class Insistent(Controller):
    """The controller, heeded in nothing: its own time is what counts, all drafts are asked for and all are verified."""

    def __init__(self, cost: CostCurve, max_draft: int) -> None:
        super().__init__(cost, max_draft, has_rounds=False)
        self._length = max_draft

    def appetites(self, request_ids: Sequence[int]) -> Mapping[int, int]:
        """As long as may be, for all."""
        super().appetites(request_ids)
        return dict.fromkeys(request_ids, self._length)

    def choose(self, rows: Sequence[RowDraft], shape: StepShape) -> list[int]:
        """All there is."""
        super().choose(rows, shape)
        return [len(row.survival) for row in rows]


class _Run(NamedTuple):
    """Some rows on an engine, with drafts of one length."""

    num_rows: int
    num_drafts: int = 0
    """Of each row; 0 = none are asked for."""
    is_in_vain: bool = False
    """They are asked for and never found."""


def measure_steps(loaded: LoadedEngine, info: EngineInfo, curve: CostCurve) -> StepTimes:
    """Time steps of a loaded engine; some seconds.

    Args:
        loaded: the engine.
        info: what it is.
        curve: its cost curve, best times.
    """
    bench = _Bench(loaded, info, curve)
    plain = _plain(bench.timed([_Run(num_rows) for num_rows in ROWS]))
    longest = loaded.opened.config.speculation.max_draft_tokens
    if not longest:
        return StepTimes(plain)
    lengths = sorted({min(length, longest) for length in LENGTHS})
    in_vain = [_Run(num_rows, longest, is_in_vain=True) for num_rows in DRAFT_ROWS]
    verifying = [_Run(num_rows, length) for num_rows in DRAFT_ROWS for length in lengths]
    return StepTimes(plain, _drafting(plain, bench.timed(in_vain)), _drafting(plain, bench.timed(verifying)))


class _Reading(NamedTuple):
    """One step, or the medians of several alike."""

    num_rows: float
    num_drafts: float
    """Verified, of all rows together."""
    curve_ms: float
    """What the curve says of it."""
    ms: float


def _length(reading: _Reading) -> int:
    """Drafts of a row, about."""
    return round(reading.num_drafts / reading.num_rows)


def _plain(readings: Sequence[_Reading]) -> Host:
    """Each number of rows as it was measured."""
    return Host(by_rows=tuple((one.num_rows, one.ms - one.curve_ms) for one in readings))


def _drafting(plain: Host, readings: Sequence[_Reading]) -> Host:
    """So much more a step, a row and a draft: what explains the readings, relative errors alike, nothing negative."""
    if not readings:
        return plain
    features = [[1.0 / one.ms, one.num_rows / one.ms, one.num_drafts / one.ms] for one in readings]
    goal = [1.0 - (one.curve_ms + plain.ms(round(one.num_rows))) / one.ms for one in readings]
    matrix = np.array(features)
    used = matrix.any(axis=0)
    found = np.zeros(3)
    found[used] = non_negative(matrix[:, used], np.array(goal))
    step_ms, row_ms, draft_ms = found.tolist()
    return replace(plain, step_ms=step_ms, row_ms=row_ms, draft_ms=draft_ms)


def _medians(steps: Sequence[_Reading]) -> list[_Reading]:
    """Of steps of about so many drafts a row, where there are a few."""
    alike: dict[int, list[_Reading]] = {}
    for step in steps:
        alike.setdefault(_length(step), []).append(step)
    return [
        _Reading(*(statistics.median(column) for column in zip(*group, strict=True)))
        for group in alike.values()
        if len(group) >= LEAST_STEPS
    ]


class _Bench:
    """Runs made-up rows on an engine."""

    def __init__(self, loaded: LoadedEngine, info: EngineInfo, curve: CostCurve) -> None:
        self._loaded = loaded
        self._info = info
        self._curve = curve

    def timed(self, runs: Sequence[_Run]) -> list[_Reading]:
        """Of those of the runs that the engine has room for: there and back, and of each the quicker time, for what
        disturbs a run for a moment, as compiling does, only ever adds to it.
        """
        most = min(self._info.max_num_seqs, self._info.num_blocks * self._info.block_size // (2 * PROMPT_TOKENS))
        possible = [run for run in runs if run.num_rows <= most]
        best: dict[tuple[_Run, int], _Reading] = {}
        for run in (*possible, *reversed(possible)):
            for one in self._timed(run):
                kind = run, _length(one)
                if kind not in best or one.ms < best[kind].ms:
                    best[kind] = one
        return list(best.values())

    def _timed(self, run: _Run) -> list[_Reading]:
        core = self._core(run)
        max_tokens = NUM_STEPS if run.is_in_vain else NUM_STEPS * (1 + run.num_drafts)
        max_tokens = min(max_tokens, self._info.max_model_len - PROMPT_TOKENS - 1)
        if max_tokens < 1:
            return []
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        for index in range(run.num_rows):
            core.add_request(made_up_request(index, self._info, params, PROMPT_TOKENS))
        steps = []
        while core.has_work:
            before = core.stats()
            began_s = time.perf_counter()
            num_rows = len(core.step())
            ms = (time.perf_counter() - began_s) * 1000
            after = core.stats()
            if num_rows < run.num_rows or after.prompt_tokens_computed > before.prompt_tokens_computed:
                continue  # prompts among them, or some are done
            num_drafts = after.num_draft_tokens - before.num_draft_tokens
            if run.is_in_vain or bool(num_drafts) == bool(run.num_drafts):
                kv_tokens = num_rows * PROMPT_TOKENS + before.generated_tokens + num_drafts
                curve_ms = self._curve.forward_ms(StepShape(num_rows + num_drafts, num_rows, kv_tokens))
                steps.append(_Reading(num_rows, num_drafts, curve_ms, ms))
        return _medians(steps[NUM_WARM:])

    def _core(self, run: _Run) -> EngineCore:
        if not run.num_drafts:
            return self._loaded.core(SpeculationConfig(methods=()), NoDrafts())
        speculation = SpeculationConfig(
            num_speculative_tokens=run.num_drafts,
            rejection_sample_method="synthetic",
            synthetic_acceptance_rates=(1.0,) * run.num_drafts,
        )
        if run.is_in_vain:
            speculation = replace(speculation, prompt_lookup_min=NEVER, prompt_lookup_max=NEVER)
        policy: DraftPolicy = Insistent(CostCurve.from_dict(self._curve.to_dict()), run.num_drafts)
        return self._loaded.core(speculation, policy)


def made_up_request(index: int, info: EngineInfo, params: SamplingParams, length: int) -> Request:
    """A prompt like no other, of so many tokens."""
    prompt = [(index * 31 + place * 7) % info.vocab_size for place in range(length)]
    most = length + (params.max_tokens or 1)
    return Request(
        index, prompt, params, max_total_tokens=most, end_token_ids=frozenset(),
        arrival_s=time.monotonic(),
    )  # fmt: skip
