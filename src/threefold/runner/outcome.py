"""What a step's rows came to, for the control half.

Knows nothing about how it came about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from threefold.runner.drafting import Offer
from threefold.runner.inputs import StepInputs
from threefold.sample.sampler import Judged
from threefold.step import RowResult, StepPlan, TokenLogprobs, TokenRows

_NO_OFFER: Offer = ((), "")


def row_results(
    plan: StepPlan,
    inputs: StepInputs,
    judged: Judged,
    offers: Mapping[int, Offer],
    prompt_logprobs: Mapping[int, list[TokenLogprobs]],
) -> Sequence[RowResult]:
    """One result a row of the plan.

    Args:
        plan: the step's.
        inputs: made of it.
        judged: the rows that wanted tokens.
        offers: their next drafts, by request id.
        prompt_logprobs: log-probabilities of prompt tokens, by index in the plan.
    """
    token_ids, _, logprobs, errors, _ = judged
    if len(token_ids) == len(plan.rows) and not (logprobs or errors or prompt_logprobs):
        if not (offers or inputs.wanted.has_drafts):
            return TokenRows(token_ids)
        columns = plan.columns
        rows = zip(columns.request_ids, columns.max_draft, token_ids, strict=True)
        new = tuple.__new__  # several times as fast as RowResult(…)
        return [
            new(RowResult, (ids, max_draft, *offers.get(request_id, _NO_OFFER), None, None, None))
            for request_id, max_draft, ids in rows
        ]
    results = [RowResult([])] * len(plan.rows)
    entries = logprobs or [None] * len(token_ids)
    for index, (place, ids) in enumerate(zip(inputs.places.tolist(), token_ids, strict=True)):
        planned = plan.rows[place]
        survival, drafter = offers.get(planned.request_id, _NO_OFFER)
        results[place] = RowResult(ids, planned.max_draft, survival, drafter, entries[index], None, errors.get(index))
    for place, of_prompt in prompt_logprobs.items():
        results[place] = results[place]._replace(prompt_logprobs=of_prompt)
    return results
