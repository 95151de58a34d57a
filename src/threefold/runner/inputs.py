"""A plan to the arrays of one forward pass.

Knows nothing about models, devices or sampling. Prompt chunks, single tokens and tokens with drafts are one case here:
positions num_computed to num_computed + num_new of each row, gathered from the persistent rows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from threefold.runner.loops import lay_out
from threefold.runner.rows import Growth, Rows
from threefold.sample.sampler import Wanted
from threefold.step import StepPlan

IntArray = npt.NDArray[np.int64]

_COLUMNS = 5
_ROW, _COMPUTED, _NEW, _DRAFTS, _WANTS = range(_COLUMNS)


@dataclass(slots=True)
class PromptPositions:
    """Prompt positions whose next token's log-probability was asked for, of one plan row."""

    place: int  # index of the row in the plan
    tokens: range  # indices of the fed tokens whose logits are wanted
    targets: list[int]  # the prompt token behind each
    num_top: int  # most likely tokens to report beside each


@dataclass(slots=True)
class StepArrays:
    """One step's tokens as layers.batch.Batch describes them, on the host."""

    token_ids: IntArray  # [num_tokens]; -1 - place where it is a token that only the device knows, see DeviceRows
    positions: IntArray  # [num_tokens]
    slots: IntArray  # [num_tokens]
    row_ids: IntArray  # [num_rows] where each of the step's rows is kept
    row_starts: IntArray  # [num_rows + 1]
    context_lens: IntArray  # [num_rows]
    logit_tokens: IntArray  # [num_logits]
    keep_rows: IntArray  # [num_logits] the row whose next input is chosen there, max_rows = nobody's
    max_new: int
    max_context: int
    has_unknown: bool  # whether some token is still to be chosen by a step in flight
    growth: Growth  # what the block tables were given since the last step


@dataclass(slots=True)
class StepInputs:
    """One step's arrays and what its logits are for.

    logit_tokens   [ row: next, behind draft 1, ... | next row ... | prompt positions of rows that asked ]
                     0                                               num_wanted
    """

    arrays: StepArrays
    wanted: Wanted
    places: IntArray  # [rows in `wanted`] index in the plan of each
    num_wanted: int
    prompts: list[PromptPositions]
    columns: IntArray  # [5, num_rows] what lay_out takes of the plan


def build_inputs(plan: StepPlan, rows: Rows, before: StepInputs | None = None) -> StepInputs:
    """Gather a step's tokens, slots and tables.

    Args:
        plan: rows that are all set up, blocks already appended.
        rows: the persistent state.
        before: of the step launched before, from which a plan that goes on with its rows is told.
    """
    columns = _columns(plan, rows) if before is None or not plan.goes_on else _one_further(before.columns)
    out, num_tokens, num_wanted, num_wanting, max_new, max_context, has_unknown, is_asking = lay_out(
        columns,
        rows.token_ids,
        rows.lengths,
        rows.num_drafts,
        rows.block_tables,
        rows.sampling.num_prompt_tokens,
        rows.has_prompt_logprobs,
        rows.block_size,
    )
    num_rows = columns.shape[1]
    logits = 3 * num_tokens
    wanting = logits + 2 * num_wanted
    starts = wanting + 5 * num_wanting
    ends = starts + num_rows + 1
    fed = ends + num_rows
    token_ids, positions, slots = out[:logits].reshape(3, num_tokens)
    logit_tokens, keep_rows = out[logits:wanting].reshape(2, num_wanted)
    wanting_rows, first, num_output, num_drafts, places = out[wanting:starts].reshape(5, num_wanting)
    arrays = StepArrays(
        token_ids,
        positions,
        slots,
        columns[_ROW],
        out[starts:ends],
        out[ends:fed],
        logit_tokens,
        keep_rows,
        max_new,
        max_context,
        has_unknown,
        rows.take_growth(),
    )
    wanted = Wanted(wanting_rows, first, num_output, num_drafts, out[fed:])
    prompts = _ask_for_prompts(columns, arrays, rows) if is_asking else []
    return StepInputs(arrays, wanted, places, num_wanted, prompts, columns)


def _columns(plan: StepPlan, rows: Rows) -> IntArray:
    """What lay_out takes of a plan."""
    request_ids, computed, new, drafts, _, wants, _ = plan.columns
    row_ids = map(rows.row_of.__getitem__, request_ids)
    num_rows = len(request_ids)
    packed = struct.pack(f"{_COLUMNS * num_rows}q", *row_ids, *computed, *new, *drafts, *wants)  # numpy takes longer
    return np.frombuffer(bytearray(packed), np.int64).reshape(_COLUMNS, num_rows)


def _one_further(before: IntArray) -> IntArray:
    """Each row is fed the one token behind those that it was fed before."""
    columns = before.copy()
    columns[_COMPUTED] += columns[_NEW]
    columns[_NEW] = 1
    return columns


def _ask_for_prompts(columns: IntArray, arrays: StepArrays, rows: Rows) -> list[PromptPositions]:
    """Find the prompt positions that were asked for; their logits come behind those for drawing."""
    prompts = _prompt_positions(columns, arrays.row_starts, rows)
    if prompts:
        asked = np.concatenate([np.array(prompt.tokens) for prompt in prompts])
        arrays.logit_tokens = np.concatenate([arrays.logit_tokens, asked])
        arrays.keep_rows = np.concatenate([arrays.keep_rows, np.full(len(asked), len(rows.lengths))])
    return prompts


def _prompt_positions(columns: IntArray, starts: IntArray, rows: Rows) -> list[PromptPositions]:
    """Fed prompt positions that predict a prompt token, for rows that asked for prompt_logprobs."""
    found = []
    for place in rows.has_prompt_logprobs[columns[_ROW]].nonzero()[0].tolist():
        row, num_computed, num_new = columns[:_DRAFTS, place].tolist()
        params = rows.params[row]
        assert params is not None and params.prompt_logprobs is not None
        # After preemption output follows the prompt; its prompt's log-probabilities were reported before.
        num_prompt = int(rows.sampling.num_prompt_tokens[row])
        num = min(num_new, num_prompt - 1 - num_computed)
        if num > 0 and rows.lengths[row] == num_prompt:
            start, first = int(starts[place]), num_computed + 1
            targets = rows.token_ids[row, first : first + num].tolist()
            found.append(PromptPositions(place, range(start, start + num), targets, params.prompt_logprobs))
    return found
