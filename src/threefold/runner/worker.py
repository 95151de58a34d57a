"""Runs plans on one rank. Orders calls only: what happens in each of them stands in the module it is called from.

Knows nothing about text, queues or blocks' owners.
"""

from __future__ import annotations

import torch

from threefold.runner.device import Device
from threefold.runner.drafting import Drafting, Proposal
from threefold.runner.inputs import PromptPositions, StepInputs, build_inputs
from threefold.runner.rows import Rows
from threefold.runner.runner import ModelRunner
from threefold.sample.logprobs import token_logprobs
from threefold.sample.sampler import Sampled, Sampler
from threefold.step import RowResult, StepPlan, StepResult, TokenLogprobs


class Worker:
    """One rank's rows, model, sampler and drafters.

    Args:
        runner: the model.
        rows: persistent state, large enough for every plan.
        sampler: over the rows' sampling table.
        drafting: the drafters, none among them allowed to hurt.
        device: where it all lives.
    """

    def __init__(self, runner: ModelRunner, rows: Rows, sampler: Sampler, drafting: Drafting, device: Device) -> None:
        self._runner = runner
        self._rows = rows
        self._sampler = sampler
        self._drafting = drafting
        self._device = device

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Run one step: new tokens through the model, then a token and the next draft for each row that wants them.

        A fault of one row is reported in its RowResult; an exception means that the engine cannot go on.
        """
        self._update_rows(plan)
        if not plan.rows:
            return StepResult([], num_draft_faults=self._drafting.take_num_faults())
        started_ms = self._device.clock_ms()
        inputs = build_inputs(plan, self._rows, self._device)
        hidden = self._runner.forward(inputs.batch)
        sampled = self._sample(hidden, inputs)
        prompt_logprobs = self._prompt_logprobs(hidden, inputs)
        forwarded_ms = self._device.clock_ms()
        self._commit(plan, sampled)
        proposals = self._propose(plan, sampled)
        results = [
            _row_result(
                sampled.get(place), planned.max_draft, proposals.get(planned.request_id), prompt_logprobs.get(place)
            )
            for place, planned in enumerate(plan.rows)
        ]
        return StepResult(
            rows=results,
            forward_ms=forwarded_ms - started_ms,
            draft_ms=self._device.clock_ms() - forwarded_ms,
            num_draft_faults=self._drafting.take_num_faults(),
        )

    def _update_rows(self, plan: StepPlan) -> None:
        for request_id in plan.dropped:
            if self._rows.drop(request_id):
                self._drafting.stop(request_id)
        for new in plan.new_rows:
            self._rows.add(new)
            self._drafting.start(new.request_id, new.token_ids, new.cache_salt)
        for planned in plan.rows:
            if planned.new_blocks:
                self._rows.grow(self._rows.find(planned.request_id), planned.new_blocks)

    def _sample(self, hidden: torch.Tensor, inputs: StepInputs) -> dict[int, Sampled]:
        """What each row that wants a token came to, by its place in the plan."""
        if not inputs.places:
            return {}
        logits = self._runner.logits(hidden[: inputs.num_wanted])
        return dict(zip(inputs.places, self._sampler.sample(logits, inputs.wanted), strict=True))

    def _prompt_logprobs(self, hidden: torch.Tensor, inputs: StepInputs) -> dict[int, list[TokenLogprobs]]:
        """Log-probabilities of prompt tokens, by place in the plan."""
        found = {}
        start = inputs.num_wanted
        for prompt in inputs.prompts:
            found[prompt.place] = self._of_prompt(hidden[start : start + len(prompt.targets)], prompt)
            start += len(prompt.targets)
        return found

    def _of_prompt(self, hidden: torch.Tensor, prompt: PromptPositions) -> list[TokenLogprobs]:
        entries: list[TokenLogprobs] = []
        for logits in self._runner.logits_in_chunks(hidden):
            targets = prompt.targets[len(entries) : len(entries) + len(logits)]
            entries.extend(token_logprobs(logits, targets, [prompt.num_top] * len(targets)))
        return entries

    def _commit(self, plan: StepPlan, sampled: dict[int, Sampled]) -> None:
        for place, row in sampled.items():
            request_id = plan.rows[place].request_id
            self._rows.append(self._rows.find(request_id), row.token_ids)
            self._drafting.observe(request_id, row.token_ids)

    def _propose(self, plan: StepPlan, sampled: dict[int, Sampled]) -> dict[int, Proposal]:
        """The next drafts, by request id; also kept with the rows."""
        wanted = {
            plan.rows[place].request_id: plan.rows[place].next_draft
            for place, row in sampled.items()
            if plan.rows[place].next_draft > 0 and row.error is None
        }
        proposals = self._drafting.propose(wanted) if wanted else {}
        for request_id, proposal in proposals.items():
            self._rows.set_draft(self._rows.find(request_id), proposal.draft.token_ids)
        return proposals


def _row_result(
    sampled: Sampled | None, num_drafted: int, proposal: Proposal | None, prompt_logprobs: list[TokenLogprobs] | None
) -> RowResult:
    if sampled is None:
        return RowResult([], prompt_logprobs=prompt_logprobs)
    token_ids, logprobs, error = sampled
    if proposal is None:
        return RowResult(token_ids, num_drafted, (), "", logprobs, prompt_logprobs, error)
    survival, drafter = proposal.draft.survival, proposal.drafter
    return RowResult(token_ids, num_drafted, survival, drafter, logprobs, prompt_logprobs, error)
