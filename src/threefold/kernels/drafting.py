"""What stands around the passes of a draft model that feeds itself: rows to inputs, logits to the next token.

    tokens ─► next_inputs ───┐
                             ├─► the model ─► logits ─► note_choices ─► tokens, positions + 1, out[round]
    asked, drawn ─► judged ──┘

All of it stays on the device and may stand in a captured graph. On a card each is one or two kernels in place of twenty
to forty: a pass of a small model is short enough that they would show. Knows nothing about models or requests.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from threefold.kernels.argmax import most_likely_reference
from threefold.kernels.bodies import is_triton

BY_COMPARISON = -1
"""In place of a number of drafts that hold: as many as were drawn."""
ASKED = ("row", "length", "last token", "end", "first", "drafts", "held", "place")
"""What is known of a row before it is judged; its drafts stand behind."""


class RoundState(NamedTuple):
    """Where rows stand; each [num_rows] int64, padding behind all real rows."""

    rows: torch.Tensor
    """Index of their block tables and last tokens; the number of rows that there are means padding."""
    positions: torch.Tensor
    """Of the next token to be fed."""
    ends: torch.Tensor
    """Positions from here on have no slots: what is fed there leaves no trace."""
    rounds: torch.Tensor
    """Tokens chosen so far."""


class RoundInputs(NamedTuple):
    """num_new tokens of each row, as layers.batch.Batch has them."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    row_starts: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor


def next_inputs(state: RoundState, tokens: torch.Tensor, tables: torch.Tensor, block_size: int) -> RoundInputs:
    """Each row's last token.

    Args:
        state: as it stands.
        tokens: int64, the first [max_rows] the last token of each row; padding has one, too.
        tables: [max_rows, max_blocks] int32.
        block_size: tokens a block.
    """
    if is_triton(tokens.device, torch.float32):
        from threefold.kernels.triton.drafting import next_inputs_body

        return next_inputs_body(state, tokens, tables, block_size)
    return next_inputs_reference(state, tokens, tables, block_size)


def next_inputs_reference(
    state: RoundState, tokens: torch.Tensor, tables: torch.Tensor, block_size: int
) -> RoundInputs:
    """The contract in torch."""
    return _inputs(state, tokens[state.rows][:, None], state.positions[:, None], tables, block_size)


def judged_inputs(  # noqa: PLR0917 (as they lie on the device)
    state: RoundState,
    asked: torch.Tensor,
    drawn: torch.Tensor,
    target_tokens: torch.Tensor,
    tables: torch.Tensor,
    block_size: int,
) -> RoundInputs:
    """Judge a step's drafts and begin rounds behind it: each row's last two tokens.

    The drafts of a row hold while they equal what was drawn in their place, or as many as is decreed; behind them
    stands one drawn token more.

    Args:
        state: is set to stand at each row's last token, no token chosen.
        asked: [len(ASKED) + max_draft, num_rows] int64: row; length, tokens known before the step; the last of them;
            end; index of the first token drawn; number of drafts; how many hold, or BY_COMPARISON; where the next
            drafts go, of no concern here; drafts, -1 - place of those that stand among target_tokens.
        drawn: int64, the step's tokens.
        target_tokens: int64.
        tables: [max_rows, max_blocks] int32.
        block_size: tokens a block.
    """
    if is_triton(drawn.device, torch.float32):
        from threefold.kernels.triton.drafting import judged_inputs_body

        return judged_inputs_body(state, asked, drawn, target_tokens, tables, block_size)
    return judged_inputs_reference(state, asked, drawn, target_tokens, tables, block_size)


def judged_inputs_reference(  # noqa: PLR0917 (as they lie on the device)
    state: RoundState,
    asked: torch.Tensor,
    drawn: torch.Tensor,
    target_tokens: torch.Tensor,
    tables: torch.Tensor,
    block_size: int,
) -> RoundInputs:
    """The contract in torch."""
    rows, lengths, last_known, ends, first, num_drafts, decreed, _ = asked[: len(ASKED)]
    drafts = asked[len(ASKED) :]  # [max_draft, num_rows]
    drafts = torch.where(drafts < 0, target_tokens[(-1 - drafts).clamp(min=0)], drafts)
    ahead = torch.arange(len(drafts) + 1, device=asked.device)[:, None]
    given = drawn[(first + ahead).clamp(max=len(drawn) - 1)]  # [max_draft + 1, num_rows]
    does_hold = (given[:-1] == drafts) & (ahead[:-1] < num_drafts)
    num_held = torch.where(decreed == BY_COMPARISON, does_hold.long().cumprod(0).sum(0), decreed)
    last = given.gather(0, num_held[None])[0]
    before = torch.where(num_held > 0, drafts.gather(0, (num_held[None] - 1).clamp(min=0))[0], last_known)
    positions = lengths + num_held  # of the last token
    for own, new in zip(state, (rows, positions, ends, torch.zeros_like(rows)), strict=True):
        own.copy_(new)
    fed = positions[:, None] + torch.arange(-1, 1, device=asked.device)
    return _inputs(state, torch.stack((before, last), dim=1), fed, tables, block_size)


def _inputs(
    state: RoundState, token_ids: torch.Tensor, positions: torch.Tensor, tables: torch.Tensor, block_size: int
) -> RoundInputs:
    """Tokens and their positions, both [num_rows, num_new], laid out."""
    num_rows, num_new = token_ids.shape
    max_rows, max_blocks = tables.shape
    is_real = (state.rows < max_rows)[:, None]
    own_tables = tables.index_select(0, state.rows.clamp(max=max_rows - 1))
    places = (positions // block_size).clamp(0, max_blocks - 1)
    slots = own_tables.gather(1, places) * block_size + positions % block_size
    starts = torch.arange(num_rows + 1, dtype=torch.int32, device=tables.device) * num_new
    return RoundInputs(
        token_ids=token_ids.reshape(-1),
        positions=torch.where(is_real, positions, 0).view(-1),
        slots=torch.where(is_real & (positions < state.ends[:, None]), slots.long(), -1).view(-1),
        row_starts=torch.minimum(starts, is_real.sum().int() * num_new),
        context_lens=torch.where(is_real[:, 0], positions[:, -1] + 1, 0).int(),
        block_tables=own_tables,
    )


def note_choices(logits: torch.Tensor, state: RoundState, tokens: torch.Tensor, out: torch.Tensor) -> None:
    """Choose each row's most likely token and move on.

    Args:
        logits: [num_rows, vocab] float32.
        state: positions and rounds grow by one.
        tokens: int64, is given the token at each row's place.
        out: [max_rounds, 2, num_rows or more] int32, is given the token, and bit by bit its probability, in its round.
    """
    if is_triton(logits.device, logits.dtype):
        from threefold.kernels.triton.drafting import note_choices_body

        note_choices_body(logits, state, tokens, out)
    else:
        note_choices_reference(logits, state, tokens, out)


def note_choices_reference(logits: torch.Tensor, state: RoundState, tokens: torch.Tensor, out: torch.Tensor) -> None:
    """The contract in torch."""
    chosen, largest = most_likely_reference(logits)
    chances = (largest - logits.logsumexp(-1)).exp()
    lanes = torch.arange(len(logits), device=logits.device)
    out[state.rounds, 0, lanes] = chosen.int()
    out[state.rounds, 1, lanes] = chances.view(torch.int32)
    tokens.index_copy_(0, state.rows, chosen)
    state.positions.add_(1)
    state.rounds.add_(1)
