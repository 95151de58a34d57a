"""What a step's rows came to, for the control half.

Knows nothing about how it came about.
"""

from __future__ import annotations

from collections.abc import Mapping

from threefold.runner.drafting import Proposal
from threefold.runner.inputs import StepInputs
from threefold.sample.sampler import Judged
from threefold.step import RowResult, StepPlan, TokenLogprobs


def row_results(
    plan: StepPlan,
    inputs: StepInputs,
    judged: Judged,
    proposals: Mapping[int, Proposal],
    prompt_logprobs: Mapping[int, list[TokenLogprobs]],
) -> list[RowResult]:
    """One result a row of the plan.

    Args:
        plan: the step's.
        inputs: made of it.
        judged: the rows that wanted tokens.
        proposals: their next drafts, by request id.
        prompt_logprobs: log-probabilities of prompt tokens, by index in the plan.
    """
    token_ids, _, logprobs, errors, _ = judged
    is_all = len(token_ids) == len(plan.rows)
    if is_all and not (proposals or inputs.wanted.has_drafts or logprobs or errors or prompt_logprobs):
        return [RowResult(ids) for ids in token_ids]
    results = [RowResult([])] * len(plan.rows)
    entries = logprobs or [None] * len(token_ids)
    for index, (place, ids) in enumerate(zip(inputs.places.tolist(), token_ids, strict=True)):
        planned = plan.rows[place]
        proposal = proposals.get(planned.request_id)
        survival, drafter = ((), "") if proposal is None else (proposal.draft.survival, proposal.drafter)
        error = errors.get(index)
        results[place] = RowResult(ids, planned.max_draft, survival, drafter, entries[index], None, error)
    for place, of_prompt in prompt_logprobs.items():
        results[place] = results[place]._replace(prompt_logprobs=of_prompt)
    return results
