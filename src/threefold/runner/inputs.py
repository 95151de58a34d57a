"""A plan to the arrays of one forward pass.

Knows nothing about models, devices or sampling. Prompt chunks, single tokens and tokens with drafts are one case here:
positions num_computed to num_computed + num_new of each row, gathered from the persistent rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from threefold.runner.rows import Growth, Rows
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
    places: list[int]  # index in the plan of each row in `wanted`
    num_wanted: int
    num_drafts: IntArray  # [rows in `wanted`] drafts fed
    prompts: list[PromptPositions]


@dataclass(slots=True)
class _Columns:
    """A plan's rows, column by column, each [num_rows]."""

    row_ids: IntArray
    computed: IntArray
    new: IntArray
    drafts: IntArray
    wants: npt.NDArray[np.bool_]
    starts: IntArray  # first fed token of each row


def build_inputs(plan: StepPlan, rows: Rows) -> StepInputs:
    """Gather a step's tokens, slots and tables.

    Args:
        plan: rows that are all set up, blocks already appended.
        rows: the persistent state.
    """
    columns = _columns(plan, rows)
    wanting = columns.wants.nonzero()[0]
    wanted, logit_tokens, keep_rows = _wanted(columns, wanting, rows)
    prompts = _prompt_positions(columns, rows)
    num_wanted = len(logit_tokens)
    if prompts:
        asked = np.concatenate([np.array(prompt.tokens) for prompt in prompts])
        logit_tokens = np.concatenate([logit_tokens, asked])
        keep_rows = np.concatenate([keep_rows, np.full(len(asked), len(rows.lengths))])
    arrays = _arrays(columns, rows, logit_tokens, keep_rows)
    return StepInputs(arrays, wanted, wanting.tolist(), num_wanted, columns.drafts[wanting], prompts)


def _columns(plan: StepPlan, rows: Rows) -> _Columns:
    ids, computed, new, drafts, _, wants, _ = zip(*plan.rows, strict=True)
    new_tokens = np.array(new, dtype=np.int64)
    return _Columns(
        row_ids=np.array([rows.row_of[request_id] for request_id in ids], dtype=np.int64),
        computed=np.array(computed, dtype=np.int64),
        new=new_tokens,
        drafts=np.array(drafts, dtype=np.int64),
        wants=np.array(wants, dtype=np.bool_),
        starts=new_tokens.cumsum() - new_tokens,
    )


def _arrays(columns: _Columns, rows: Rows, logit_tokens: IntArray, keep_rows: IntArray) -> StepArrays:
    row_ids, computed, new, starts = columns.row_ids, columns.computed, columns.new, columns.starts
    max_new = int(new.max())
    if max_new == 1:
        positions, token_rows = computed, row_ids
    else:
        num_tokens = int(starts[-1] + new[-1])
        positions = np.arange(num_tokens) + np.repeat(computed - starts, new)
        token_rows = np.repeat(row_ids, new)
    token_ids = rows.token_ids[token_rows, positions].astype(np.int64)
    context_lens = computed + new
    # A row may be ahead of what is known here by the token that a step in flight is about to choose for it.
    is_ahead = context_lens > rows.lengths[row_ids] + rows.num_drafts[row_ids]
    has_unknown = bool(is_ahead.any())
    if has_unknown:
        last_known = (starts + new - 1)[is_ahead]
        token_ids[last_known] = -1 - row_ids[is_ahead]
    blocks = rows.block_tables[token_rows, positions // rows.block_size].astype(np.int64)
    return StepArrays(
        token_ids=token_ids,
        positions=positions,
        slots=blocks * rows.block_size + positions % rows.block_size,
        row_ids=row_ids,
        row_starts=np.append(starts, starts[-1] + new[-1]),
        context_lens=context_lens,
        logit_tokens=logit_tokens,
        keep_rows=keep_rows,
        max_new=max_new,
        max_context=int(context_lens.max()),
        has_unknown=has_unknown,
        growth=rows.take_growth(),
    )


def _wanted(columns: _Columns, places: IntArray, rows: Rows) -> tuple[Wanted, IntArray, IntArray]:
    """Rows that want tokens, the fed tokens behind which they are drawn, and whose next input each draw is.

    A token is drawn behind a row's last known token and behind each of its drafts.
    """
    wanting, num_drafts = columns.row_ids[places], columns.drafts[places]
    known_end = (columns.computed + columns.new)[places] - num_drafts
    last_known = (columns.starts + columns.new)[places] - num_drafts - 1
    has_drafts = bool(num_drafts.any())
    if has_drafts:
        num_positions = num_drafts + 1
        first = num_positions.cumsum() - num_positions
        logit_tokens = np.arange(num_positions.sum()) + np.repeat(last_known - first, num_positions)
        keep_rows = np.repeat(np.where(num_drafts > 0, len(rows.lengths), wanting), num_positions)
        drafts = _drafts(wanting, num_drafts, rows)
    else:
        first, logit_tokens, keep_rows = np.arange(len(places)), last_known, wanting
        drafts = [[] for _ in range(len(places))]
    wanted = Wanted(
        rows=wanting,
        first=first.tolist(),
        num_output=(known_end - rows.sampling.num_prompt_tokens[wanting]).tolist(),
        drafts=drafts,
        has_drafts=has_drafts,
    )
    return wanted, logit_tokens, keep_rows


def _drafts(wanting: IntArray, num_drafts: IntArray, rows: Rows) -> list[list[int]]:
    if (num_drafts > rows.num_drafts[wanting]).any():
        raise RuntimeError("the plan feeds more drafts than are at hand")
    starts = rows.lengths[wanting]
    within = np.minimum(starts[:, None] + np.arange(int(num_drafts.max())), rows.token_ids.shape[1] - 1)
    tokens: Sequence[list[int]] = rows.token_ids[wanting[:, None], within].tolist()
    return [drafted[:num] for drafted, num in zip(tokens, num_drafts.tolist(), strict=True)]


def _prompt_positions(columns: _Columns, rows: Rows) -> list[PromptPositions]:
    """Fed prompt positions that predict a prompt token, for rows that asked for prompt_logprobs."""
    found = []
    for place in rows.has_prompt_logprobs[columns.row_ids].nonzero()[0].tolist():
        row, num_computed = int(columns.row_ids[place]), int(columns.computed[place])
        params = rows.params[row]
        assert params is not None and params.prompt_logprobs is not None
        # After preemption output follows the prompt; its prompt's log-probabilities were reported before.
        num_prompt = int(rows.sampling.num_prompt_tokens[row])
        num = min(int(columns.new[place]), num_prompt - 1 - num_computed)
        if num > 0 and rows.lengths[row] == num_prompt:
            start, first = int(columns.starts[place]), num_computed + 1
            targets = rows.token_ids[row, first : first + num].tolist()
            found.append(PromptPositions(place, range(start, start + num), targets, params.prompt_logprobs))
    return found
