"""Speculation off, gated, fixed and adaptive over a table of loads, in turn on one engine: does it ever lose?

    off        not configured: no drafter, no policy
    gated      configured, drafters follow every request, the policy asks for nothing and admits nothing
    fixed K    as many drafts as proposed, up to K
    adaptive   the controller decides

Each run gets a fresh scheduler, prefix cache, worker and drafters on the same model and KV memory: exactly what a user
with that setting would get. Prompts are the same in every run, so a drafter's memory of the run before would know the
answers; only the controller lives on, from its warm-up through the whole table, as it would in a server. Knows nothing
about how results are shown.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from threefold.bench.compare import interleave
from threefold.bench.envelope_cell import Cell, Run, describe, summary
from threefold.bench.envelope_options import EnvelopeOptions
from threefold.bench.load_options import LoadOptions
from threefold.bench.offline import OfflineLoad, let_stand
from threefold.bench.step_kinds import KindsOfSteps
from threefold.bench.workload import Workload, load_workload
from threefold.config import EngineConfig, SpeculationConfig
from threefold.draft.policy import DraftPolicy, NoDrafts
from threefold.engine.build import load_engine, make_tokenizer
from threefold.engine.loaded import LoadedEngine
from threefold.errors import ConfigError

DEFAULT_REQUESTS_PER_ROW = 2
MOST_REQUESTS_PER_ROW = 64
NOTES = (
    "tokens/s = output tokens over the time from the first request to the end of the last, prompts included; answers "
    "are not written out as text, which a server does in another process",
    "variants run in turn, every second round backwards; ratios are geometric means over rounds, intervals 95 %",
    "every run has a fresh scheduler, an empty prefix cache and fresh drafters, and the same prompts",
    "every run writes as many tokens: an answer ends where it ended by itself in a first run with drafts off",
    "the controller learns in a warm-up and then lives through all runs of its drafter, as in a server",
    "the best alternative is picked among noisy medians, so its own lead over the others is partly luck",
    "answers may differ from off where two tokens are equally likely: products of other shapes round otherwise",
)
CPU_TIME_NOTE = (
    "time = CPU time of the engine's thread, which shares every product with the others: no clock on the wall, so what "
    "neighbours take of the machine is left out, and so is waiting for a thread that they held up"
)


class Variant(NamedTuple):
    """One setting of speculation."""

    name: str
    speculation: SpeculationConfig
    policy: DraftPolicy
    """Kept from run to run; of these only the adaptive one remembers anything."""


class LoadPlan(NamedTuple):
    """One load of the table."""

    workload: Workload
    """As many prompts as users: one for each."""
    concurrency: int


def bench_envelope(asked: EnvelopeOptions, config: EngineConfig, say: Callable[[str], None]) -> dict[str, Any]:
    """Build the engine and measure the whole table; Ctrl-C ends it and keeps the cells that are complete.

    Args:
        asked: what to measure.
        config: of the engine; its speculation says what adaptive may draft.
        say: told of every cell that is complete.

    Raises:
        OperatorError: the engine cannot be built, or what is asked cannot hold.
    """
    if not config.speculation.is_enabled:
        raise ConfigError("bench envelope compares speculation with its absence; leave --no-speculation out")
    loads = [_load_plan(asked, group, users) for group in asked.groups for users in asked.concurrency]
    most_drafts = max(config.speculation.num_speculative_tokens, *asked.fixed)
    planned = replace(config.speculation, methods=asked.methods, num_speculative_tokens=most_drafts)
    loaded = load_engine(replace(config, speculation=planned))
    if asked.cpu_time and loaded.card is not None:
        raise ConfigError("--cpu-time says nothing about work that a card does; leave it out")
    table = _Table(loaded, asked, config.speculation)
    table.check(max(asked.concurrency))
    began = time.perf_counter()
    cells: list[dict[str, Any]] = []
    try:
        for cell in table.measure(loads):
            cells.append(describe(cell))
            say(f"[{len(cells)}/{len(loads) * len(asked.methods)}] {summary(cells[-1])}")
        is_interrupted = False
    except KeyboardInterrupt:
        is_interrupted = True
    return {
        "benchmark": "envelope",
        "label": asked.label,
        "model_id": table.info.model,
        "engine": list(table.info.notes),
        "dataset": loads[0].workload.dataset,
        "dataset_sha256": loads[0].workload.dataset_sha256,
        "rounds": asked.rounds,
        "max_tokens": asked.max_tokens,
        "shuffle_seed": asked.shuffle_seed,
        "variants": [variant.name for variant in table.variants[asked.methods[0]]],
        "is_cpu_time": asked.cpu_time,
        "notes": [*NOTES, CPU_TIME_NOTE] if asked.cpu_time else list(NOTES),
        "duration_s": time.perf_counter() - began,
        "is_interrupted": is_interrupted,
        "cells": cells,
    }


class _Table:
    """Runs variants on one loaded engine.

    Attributes:
        info: what the engine is.
        variants: by drafter.
    """

    def __init__(self, loaded: LoadedEngine, asked: EnvelopeOptions, speculation: SpeculationConfig) -> None:
        self.info = loaded.info()
        self.variants = {method: _variants(loaded, speculation, method, asked.fixed) for method in asked.methods}
        self._loaded = loaded
        self._asked = asked
        self._tokenizer = make_tokenizer(self.info)
        self._load = LoadOptions(max_tokens=asked.max_tokens, ignore_eos=True, shuffle_seed=asked.shuffle_seed)
        self._lengths: dict[str, int] = {}  # by prompt, of its answer's natural end

    def check(self, concurrency: int) -> None:
        """Raise ConfigError when the engine runs fewer requests than there are users."""
        if concurrency > self.info.max_num_seqs:
            raise ConfigError(
                f"--concurrency {concurrency}: the engine runs at most {self.info.max_num_seqs} requests at once; "
                f"ask for fewer users or --max-num-seqs {concurrency}"
            )

    def measure(self, loads: list[LoadPlan]) -> Iterator[Cell]:
        """Cell by cell; a KeyboardInterrupt comes through."""
        ends_s = time.perf_counter() + self._asked.budget_s if self._asked.budget_s is not None else None
        off, *_ = next(iter(self.variants.values()))
        others = {method: variants[1:] for method, variants in self.variants.items()}
        let_stand()
        for variant in (off, *chain.from_iterable(others.values())):
            self._run(variant, *loads[0])
        for index, (one_each, concurrency) in enumerate(loads):
            share_s = None if ends_s is None else (ends_s - time.perf_counter()) / (len(loads) - index)
            num_requests = concurrency * self._requests_per_row(one_each, concurrency, share_s)
            workload = self._ending(_workload(self._asked, one_each.group, num_requests))
            variants = [off, *chain.from_iterable(others.values())]
            turns = [partial(self._run, variant, workload, concurrency) for variant in variants]
            results = iter(interleave(turns, self._asked.rounds))
            off_runs = next(results)
            for method, own in others.items():
                runs = {off.name: off_runs} | {variant.name: next(results) for variant in own}
                yield Cell(one_each.group, concurrency, method, num_requests, workload.num_distinct, runs)

    def _ending(self, workload: Workload) -> Workload:
        """The same prompts, each with the length at which its answer ends by itself."""
        if self._asked.ignore_eos:
            return workload
        unknown = {prompt.text: prompt for prompt in workload.prompts if prompt.text not in self._lengths}
        if unknown:
            off = next(iter(self.variants.values()))[0]
            reference = replace(workload, prompts=tuple(unknown.values()))
            run = self._run(off, reference, min(len(unknown), self.info.max_num_seqs), ignore_eos=False)
            self._lengths |= zip(unknown, map(len, run.token_ids), strict=True)
        ending = [replace(prompt, max_tokens=self._lengths[prompt.text]) for prompt in workload.prompts]
        return replace(workload, prompts=tuple(ending))

    def _requests_per_row(self, one_each: Workload, concurrency: int, share_s: float | None) -> int:
        """As asked; with a budget, as many as fit into this load's share of it, at least one."""
        asked = self._asked
        if share_s is None:
            return asked.requests_per_row or DEFAULT_REQUESTS_PER_ROW
        off = next(iter(self.variants.values()))[0]
        one_each = self._ending(one_each)
        began_s = time.perf_counter()
        self._run(off, one_each, concurrency)
        wave_s = time.perf_counter() - began_s
        num_runs = asked.rounds * (1 + sum(len(variants) - 1 for variants in self.variants.values()))
        fitting = int((share_s - wave_s) / (wave_s * num_runs))
        return max(1, min(fitting, asked.requests_per_row or MOST_REQUESTS_PER_ROW))

    def _run(self, variant: Variant, workload: Workload, concurrency: int, *, ignore_eos: bool = True) -> Run:
        core = self._loaded.core(variant.speculation, variant.policy)
        core.executor = kinds = KindsOfSteps(core.executor)
        load = OfflineLoad(core, self.info, replace(self._load, ignore_eos=ignore_eos), self._tokenizer, has_text=False)
        gc.collect()
        began_s = time.thread_time()
        load.run(workload, concurrency)
        duration_s = time.thread_time() - began_s if self._asked.cpu_time else load.duration_s
        if load.running or load.waiting:  # Ctrl-C ended it
            raise KeyboardInterrupt
        num_tokens = sum(outcome.output_tokens for outcome in load.outcomes)
        num_failed = sum(1 for outcome in load.outcomes if outcome.error)
        if not num_tokens:
            raise ConfigError(f"no request of {workload.group} was answered: {load.outcomes[0].error}")
        return Run(num_tokens / duration_s, num_failed, load.token_ids, core.stats(), kinds.plain())


def _variants(
    loaded: LoadedEngine, base: SpeculationConfig, method: str, lengths: tuple[int, ...]
) -> tuple[Variant, ...]:
    adaptive = replace(base, methods=(method,), is_adaptive=True)
    off = replace(base, methods=())
    fixed = [replace(adaptive, num_speculative_tokens=length, is_adaptive=False) for length in lengths]
    return (
        Variant("off", off, loaded.policy(off)[0]),
        Variant("gated", adaptive, NoDrafts()),
        *(Variant(f"fixed {one.num_speculative_tokens}", one, loaded.policy(one)[0]) for one in fixed),
        Variant("adaptive", adaptive, loaded.policy(adaptive)[0]),
    )


def _load_plan(asked: EnvelopeOptions, group: str, concurrency: int) -> LoadPlan:
    return LoadPlan(_workload(asked, group.replace("+", ","), concurrency), concurrency)


def _workload(asked: EnvelopeOptions, group: str, num_requests: int) -> Workload:
    if asked.dataset is None:
        raise ConfigError('--dataset FILE is needed: JSON lines such as {"prompt": "…"}, or Spec-Bench\'s')
    return load_workload(Path(asked.dataset), group=group, num_prompts=num_requests, seed=asked.shuffle_seed)
