"""A plan to the tensors of one forward pass.

Knows nothing about models or sampling. Prompt chunks, single tokens and tokens with drafts are one case here: positions
num_computed to num_computed + num_new of each row, gathered from the persistent rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from threefold.layers.batch import Batch
from threefold.runner.device import Device
from threefold.runner.rows import Rows
from threefold.sample.sampler import Wanted
from threefold.step import StepPlan

IntArray = npt.NDArray[np.int64]


@dataclass(slots=True)
class PromptPositions:
    """Prompt positions whose next token's log-probability was asked for, of one plan row."""

    place: int  # index of the row in the plan
    tokens: range  # indices of the fed tokens whose logits are wanted
    targets: list[int]  # the prompt token behind each
    num_top: int  # most likely tokens to report beside each


@dataclass(slots=True)
class StepInputs:
    """One step's tensors and what its logits are for.

    logit_tokens   [ row: next, behind draft 1, ... | next row ... | prompt positions of rows that asked ]
                     0                                               num_wanted
    """

    batch: Batch
    wanted: Wanted
    places: list[int]  # index in the plan of each row in `wanted`
    num_wanted: int
    prompts: list[PromptPositions]


def build_inputs(plan: StepPlan, rows: Rows, device: Device) -> StepInputs:
    """Gather a step's tokens, slots and tables.

    Args:
        plan: rows that are all set up, blocks already appended.
        rows: the persistent state.
        device: where the tensors go.
    """
    row_ids = np.array([rows.find(planned.request_id) for planned in plan.rows], dtype=np.int64)
    computed = np.array([planned.num_computed for planned in plan.rows], dtype=np.int64)
    new = np.array([planned.num_new for planned in plan.rows], dtype=np.int64)
    ends = new.cumsum()
    starts = ends - new
    positions = np.arange(ends[-1]) + np.repeat(computed - starts, new)
    token_rows = np.repeat(row_ids, new)
    context_lens = computed + new
    num_table_blocks = -(-int(context_lens.max()) // rows.block_size)
    blocks = rows.block_tables[token_rows, positions // rows.block_size].astype(np.int64)
    wanted, places, logit_tokens = _wanted(plan, rows, row_ids, starts)
    prompts = _prompt_positions(plan, rows, row_ids, starts)
    num_wanted = len(logit_tokens)
    if prompts:
        logit_tokens = np.concatenate([logit_tokens, *(np.array(prompt.tokens) for prompt in prompts)])
    batch = Batch(
        token_ids=device.tensor(rows.token_ids[token_rows, positions].astype(np.int64)),
        positions=device.tensor(positions),
        slots=device.tensor(blocks * rows.block_size + positions % rows.block_size),
        row_starts=device.tensor(np.concatenate([[0], ends]).astype(np.int32)),
        context_lens=device.tensor(context_lens.astype(np.int32)),
        block_tables=device.tensor(rows.block_tables[row_ids, :num_table_blocks]),
        logit_tokens=device.tensor(logit_tokens),
        max_new=int(new.max()),
        max_context=int(context_lens.max()),
    )
    return StepInputs(batch, wanted, places, num_wanted, prompts)


def _wanted(plan: StepPlan, rows: Rows, row_ids: IntArray, starts: IntArray) -> tuple[Wanted, list[int], IntArray]:
    """Rows that want tokens, and the fed tokens behind which they are drawn: the last known one and each draft."""
    places = [place for place, planned in enumerate(plan.rows) if planned.wants_token]
    num_drafts = np.array([plan.rows[place].max_draft for place in places], dtype=np.int64)
    num_known = np.array([plan.rows[place].num_new for place in places], dtype=np.int64) - num_drafts
    wanting = row_ids[places] if places else row_ids[:0]
    num_positions = num_drafts + 1
    first = num_positions.cumsum() - num_positions
    last_known = (starts[places] if places else starts[:0]) + num_known - 1
    logit_tokens = np.arange(num_positions.sum()) + np.repeat(last_known - first, num_positions)
    if (num_drafts > rows.num_drafts[wanting]).any():
        raise RuntimeError("the plan feeds more drafts than are at hand")
    wanted = Wanted(
        rows=wanting,
        first=first.tolist(),
        num_output=(rows.lengths[wanting] - rows.sampling.num_prompt_tokens[wanting]).tolist(),
        drafts=[
            rows.draft(row, num) if num else [] for row, num in zip(wanting.tolist(), num_drafts.tolist(), strict=True)
        ],
    )
    return wanted, places, logit_tokens


def _prompt_positions(plan: StepPlan, rows: Rows, row_ids: IntArray, starts: IntArray) -> list[PromptPositions]:
    """Fed prompt positions that predict a prompt token, for rows that asked for prompt_logprobs."""
    found = []
    for place, planned in enumerate(plan.rows):
        row = int(row_ids[place])
        params = rows.params[row]
        if params is None or params.prompt_logprobs is None:
            continue
        # After preemption output follows the prompt; its prompt's log-probabilities were reported before.
        num_prompt = int(rows.sampling.num_prompt_tokens[row])
        num = min(planned.num_new, num_prompt - 1 - planned.num_computed)
        if num > 0 and rows.lengths[row] == num_prompt:
            start, first = int(starts[place]), planned.num_computed + 1
            targets = rows.token_ids[row, first : first + num].tolist()
            found.append(PromptPositions(place, range(start, start + num), targets, params.prompt_logprobs))
    return found
