"""Runs plans on one rank. Orders calls only: what happens in each of them stands in the module it is called from.

Knows nothing about text, queues or blocks' owners.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt
import torch

from threefold.errors import StepMemoryError
from threefold.runner.ahead import Ahead, BehindDrafter
from threefold.runner.device import Device
from threefold.runner.drafting import Drafting, Offer
from threefold.runner.inputs import PromptPositions, StepInputs, build_inputs
from threefold.runner.outcome import row_results
from threefold.runner.path import StepPath, host_path
from threefold.runner.proposing import MAX_GLIMPSED_ROWS, Proposing
from threefold.runner.readback import Arrived, Pending
from threefold.runner.rows import Rows
from threefold.runner.runner import ModelRunner
from threefold.runner.sight import Sight
from threefold.sample.logprobs import token_logprobs
from threefold.sample.sampler import NOTHING, Chosen, Judged, Sampler
from threefold.step import StepPlan, StepResult, TokenLogprobs


@dataclass(slots=True)
class _Flight:
    """A step that was launched."""

    plan: StepPlan
    inputs: StepInputs
    hidden: torch.Tensor | None
    chosen: Chosen | None  # None = no row wants a token
    pending: Pending
    num_drops: npt.NDArray[np.int64]  # [rows that want a token] of each, when it was launched
    wanted: dict[int, int]  # how long a draft is asked for behind it, by request id
    num_draftings: int  # launched before it: its drafts are known when they have arrived
    ahead: Collection[int]  # requests that are being drafted for behind it


class Worker:
    """One rank's rows, model, sampler and drafters.

    A step is launched, and later collected: in between the device works and a second one may be launched. What is
    launched needs no token of a step in flight on the host; the device puts it in.

    Args:
        runner: the model.
        rows: persistent state, large enough for every plan.
        sampler: over the rows' sampling table.
        drafting: the drafters, none among them allowed to hurt.
        device: where it all lives.
        path: how steps get there; None = a CPU's.
        sight: when drafters may look ahead while the device works; None = steps do not overlap, and they never do.
        behind: a draft model that drafts while the host commits a step; left aside where it is not the only drafter.
    """

    def __init__(  # noqa: PLR0917 (collaborators)
        self,
        runner: ModelRunner,
        rows: Rows,
        sampler: Sampler,
        drafting: Drafting,
        device: Device,
        path: StepPath | None = None,
        *,
        sight: Sight | None = None,
        behind: BehindDrafter | None = None,
    ) -> None:
        self._runner = runner
        self._rows = rows
        self._sampler = sampler
        self._drafting = drafting
        self._device = device
        self._path = path or host_path(runner, rows)
        self._sight = sight if drafting.can_glimpse else None
        self._proposing = Proposing(rows, drafting)
        self._ahead = None
        if behind is not None:
            self._ahead = Ahead(behind, drafting, self._proposing, rows, self._path.device_rows)
        self._in_flight: deque[_Flight | None] = deque()  # None = a plan without rows
        self._last: StepInputs | None = None  # of the step launched last

    def run(self, plan: StepPlan) -> StepResult:
        """Launch and collect."""
        self.launch(plan)
        return self.collect()

    def launch(self, plan: StepPlan) -> None:
        """Start a step: new tokens through the model, then a token for each row that wants one.

        Raises:
            StepMemoryError: the device lacks memory; the rows are set up, and nothing else happened.
        """
        self._update_rows(plan)
        if not plan.rows:
            self._in_flight.append(None)
            return
        try:
            self._in_flight.append(self._launch(plan))
        except (RuntimeError, MemoryError) as error:
            self._check_memory(error)
            raise

    def collect(self) -> StepResult:
        """Wait for the oldest step; commit its tokens, verify its drafts and propose the next ones.

        A fault of one row is reported in its RowResult; an exception means that the engine cannot go on, unless it is a
        StepMemoryError: then the step came to nothing.
        """
        flight = self._in_flight.popleft()
        if flight is None:
            return StepResult([], num_draft_faults=self._drafting.take_num_faults())
        try:
            arrived = self._wait(flight)
            self._know_drafts(flight.inputs, flight.num_draftings)
            judged = self._judge(flight, arrived)
            prompt_logprobs = self._prompt_logprobs(flight)
        except (RuntimeError, MemoryError) as error:
            self._check_memory(error)
            raise
        began_s = time.perf_counter()
        self._commit(flight, judged, arrived)
        offers = self._propose(flight, judged)
        return StepResult(
            rows=row_results(flight.plan, flight.inputs, judged, offers, prompt_logprobs),
            forward_ms=arrived.forward_ms,
            draft_ms=(time.perf_counter() - began_s) * 1000 + arrived.behind_ms,
            idle_ms=arrived.idle_ms,
            num_draft_faults=self._drafting.take_num_faults(),
            glimpses=self._glimpse(self._sight, flight, judged) if self._sight is not None else {},
        )

    def _wait(self, flight: _Flight) -> Arrived:
        began_s = time.perf_counter()
        arrived = flight.pending.wait()
        # With nothing else in flight the next step could not be planned yet: such a wait is not idle time.
        if self._sight is not None and self._in_flight:
            self._sight.waited((time.perf_counter() - began_s) * 1000)
        return arrived

    def _launch(self, plan: StepPlan) -> _Flight:
        path, rows = self._path, self._rows
        inputs = self._last = build_inputs(plan, rows, self._last)
        wanted = inputs.wanted
        num_draftings = 0 if self._ahead is None else self._ahead.num_launched
        if wanted.has_drafts and self._sampler.has_history(wanted.rows):
            self._know_drafts(inputs, num_draftings)
        path.readback.begin()
        found = path.forward.run(inputs.arrays, inputs.num_wanted)
        chosen = None
        if found.logits is not None:
            chosen = self._sampler.choose(found.logits, wanted, found.likely)
            if chosen.likely is not found.likely:
                path.device_rows.keep(found.keep_rows, chosen.likely.tokens)
        pending = path.readback.send(None if chosen is None else chosen.likely, inputs.num_wanted)
        rows.use_drafts(wanted.rows, wanted.num_drafts)
        ahead = self._go_ahead(plan, inputs, chosen)
        asked = {}
        if self._drafting.has_drafters and plan.num_asked:
            ids, _, _, _, _, wants_token, next_draft = plan.columns
            asked = {key: num for key, num, wants in zip(ids, next_draft, wants_token, strict=True) if num and wants}
        num_drops = rows.num_drops[wanted.rows]
        return _Flight(plan, inputs, found.hidden, chosen, pending, num_drops, asked, num_draftings, ahead)

    def _go_ahead(self, plan: StepPlan, inputs: StepInputs, chosen: Chosen | None) -> Collection[int]:
        """Draft behind the step, if anybody asks. Returns for whom."""
        if self._ahead is None or chosen is None or not plan.num_asked:
            return ()
        decreed = self._sampler.decreed(inputs.wanted)
        request_ids = self._ahead.launch(plan, inputs, decreed, chosen.likely.tokens)
        if request_ids:
            self._path.readback.end_behind()
        return request_ids

    def _know_drafts(self, inputs: StepInputs, num_draftings: int) -> None:
        """Wait for the drafts that a step was made with, where only the device knows them."""
        if self._ahead is None:
            return
        self._ahead.take(num_draftings)
        wanted = inputs.wanted
        if wanted.has_drafts:
            rows = zip(wanted.rows.tolist(), wanted.num_drafts.tolist(), strict=True)
            wanted.draft_ids = np.array([token_id for row, num in rows for token_id in self._rows.draft(row, num)])

    def _check_memory(self, error: RuntimeError | MemoryError) -> None:
        """Raise StepMemoryError where that is what the error means."""
        if self._device.is_out_of_memory(error):
            self._device.release_unused()
            raise StepMemoryError(" ".join(str(error).split())[:200]) from error

    def _update_rows(self, plan: StepPlan) -> None:
        for request_id in plan.dropped:
            if request_id in self._rows:
                self._proposing.stop(request_id)
                self._rows.drop(request_id)
        for request_id in plan.recalled:
            self._drafting.recall(request_id)
        for new in plan.new_rows:
            self._rows.add(new)
            self._proposing.start(new)
        for request_id, block_ids in plan.lent.items():
            self._drafting.lend(request_id, block_ids)
        columns = plan.columns
        growing = zip(columns.request_ids, columns.new_blocks, strict=True)
        for request_id, new_blocks in compress(growing, columns.new_blocks):
            self._rows.grow(self._rows.find(request_id), new_blocks)

    def _judge(self, flight: _Flight, arrived: Arrived) -> Judged:
        """What the rows that want a token came to."""
        if flight.chosen is None:
            return NOTHING
        return self._sampler.judge(arrived.tokens, arrived.values, flight.chosen, flight.inputs.wanted)

    def _prompt_logprobs(self, flight: _Flight) -> dict[int, list[TokenLogprobs]]:
        """Log-probabilities of prompt tokens, by place in the plan."""
        found = {}
        start = flight.inputs.num_wanted
        for prompt in flight.inputs.prompts:
            assert flight.hidden is not None
            found[prompt.place] = self._of_prompt(flight.hidden[start : start + len(prompt.targets)], prompt)
            start += len(prompt.targets)
        return found

    def _of_prompt(self, hidden: torch.Tensor, prompt: PromptPositions) -> list[TokenLogprobs]:
        entries: list[TokenLogprobs] = []
        for logits in self._runner.logits_in_chunks(hidden):
            targets = prompt.targets[len(entries) : len(entries) + len(logits)]
            entries.extend(token_logprobs(logits, targets, [prompt.num_top] * len(targets)))
        return entries

    def _commit(self, flight: _Flight, judged: Judged, arrived: Arrived) -> None:
        """Append the tokens to the rows that are still there: others ended while the step was in flight."""
        wanted, (token_ids, num_drawn, *_) = flight.inputs.wanted, judged
        rows, first = wanted.rows, wanted.first
        is_here = self._rows.num_drops[rows] == flight.num_drops
        if not is_here.all():
            token_ids = list(compress(token_ids, is_here.tolist()))
            rows, first = rows[is_here], first[is_here]
            num_drawn = None if num_drawn is None else num_drawn[is_here]
        if num_drawn is not None:
            self._rows.append_runs(rows, arrived.tokens, first, num_drawn, token_ids)
        elif token_ids:
            self._rows.append_many(rows, token_ids)

    def _glimpse(self, sight: Sight, flight: _Flight, judged: Judged) -> dict[int, float]:
        """What rows that were not asked could have had, as long as looking holds nothing up."""
        rows = flight.plan.rows
        if not self._in_flight or len(rows) > MAX_GLIMPSED_ROWS or not sight.has_time(len(rows)):
            return {}
        if flight.plan.num_asked:
            return {}
        request_ids = [
            rows[place].request_id
            for index, place in enumerate(flight.inputs.places.tolist())
            if index not in judged.errors and rows[place].request_id in self._rows
        ]
        if not request_ids:
            return {}
        began_s = time.perf_counter()
        glimpses = self._proposing.glimpse(request_ids)
        sight.looked(len(request_ids), (time.perf_counter() - began_s) * 1000)
        return glimpses

    def _propose(self, flight: _Flight, judged: Judged) -> dict[int, Offer]:
        """The next drafts, by request id."""
        wanted = flight.wanted
        if not wanted:
            return {}
        for index in judged.errors:
            wanted.pop(flight.plan.rows[int(flight.inputs.places[index])].request_id, None)
        if self._ahead is None or not flight.ahead:
            return self._proposing.propose(wanted)
        # A fault may have cut a row short, and what the device drafts then follows tokens that are not there.
        return self._ahead.expect(flight.ahead if judged.is_sound else (), wanted)
