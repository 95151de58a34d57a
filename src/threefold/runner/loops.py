"""Loops over a step's rows and tokens, compiled by numba: each is one call where numpy would take a dozen.

    plan's columns + persistent rows ─► lay_out ─► arrays of a step ─► stage ─► the buffer that goes up
    tokens drawn ─► append_runs ─► persistent rows ◄─ put_drafts ◄─ drafts found

With a small model the host is what steps wait for, and every call from Python counts. Knows nothing about plans, models
or sampling; inputs.py, staging.py and rows.py say what the arrays mean.
"""
# numba brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: PLR0917 (compiled bodies take arrays one by one)

from __future__ import annotations

from functools import cache

import numba
import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]


@numba.njit(cache=True, nogil=True)
def lay_out(
    columns: Longs,
    token_ids: Ints,
    lengths: Longs,
    num_at_hand: Longs,
    block_tables: Ints,
    num_prompt_tokens: Longs,
    asks_for_prompt: npt.NDArray[np.bool_],
    block_size: int,
):
    """A step's arrays, one behind another.

    Args:
        columns: [5, num_rows] of the plan: row, computed, new and draft tokens, whether it wants a token.
        token_ids: [max_rows, width] committed tokens and drafts at hand.
        lengths: [max_rows] committed tokens.
        num_at_hand: [max_rows] drafts.
        block_tables: [max_rows, max_blocks].
        num_prompt_tokens: [max_rows].
        asks_for_prompt: [max_rows] whether log-probabilities of the prompt are wanted.
        block_size: tokens a block.

    Returns:
        (arrays, num_tokens, num_logits, num_wanting, longest row of new tokens, longest context, whether a token is
        unknown, whether a row asks for its prompt); the arrays are

            token_ids positions slots | logit_tokens keep_rows | rows first num_output num_drafts places | starts | ends | drafts
            [num_tokens] each           [num_logits] each        [num_wanting] each                       R + 1    R      fed
    """  # noqa: E501 (a picture)
    row_ids, computed, new, drafts, wants = columns[0], columns[1], columns[2], columns[3], columns[4]
    num_rows = len(row_ids)
    num_tokens = num_logits = num_wanting = max_new = max_context = 0
    is_asking = False
    for i in range(num_rows):
        end = computed[i] + new[i]
        if end > token_ids.shape[1]:
            raise RuntimeError("the plan feeds tokens beyond the end of a row")
        num_tokens += new[i]
        max_new = max(max_new, new[i])
        max_context = max(max_context, end)
        if asks_for_prompt[row_ids[i]]:
            is_asking = True
        if wants[i]:
            num_wanting += 1
            num_logits += 1 + drafts[i]
            if drafts[i] > num_at_hand[row_ids[i]]:
                raise RuntimeError("the plan feeds more drafts than are at hand")
    logits, wanting = 3 * num_tokens, 3 * num_tokens + 2 * num_logits
    starts = wanting + 5 * num_wanting
    ends = starts + num_rows + 1
    fed = ends + num_rows
    out = np.empty(fed + num_logits - num_wanting, dtype=np.int64)
    token = logit = want = 0
    has_unknown = False
    for i in range(num_rows):
        row, end = row_ids[i], computed[i] + new[i]
        out[starts + i] = token
        out[ends + i] = end
        for position in range(computed[i], end):
            out[token] = token_ids[row, position]
            out[num_tokens + token] = position
            block = np.int64(block_tables[row, position // block_size])
            out[2 * num_tokens + token] = block * block_size + position % block_size
            token += 1
        # A row may be ahead of what is known here by the token that a step in flight is about to choose for it.
        if end > lengths[row] + num_at_hand[row]:
            out[token - 1] = -1 - row
            has_unknown = True
        if wants[i]:
            num = drafts[i]
            out[wanting + want] = row
            out[wanting + num_wanting + want] = logit
            out[wanting + 2 * num_wanting + want] = end - num - num_prompt_tokens[row]
            out[wanting + 3 * num_wanting + want] = num
            out[wanting + 4 * num_wanting + want] = i
            for ahead in range(num + 1):
                out[logits + logit + ahead] = token - 1 - num + ahead
                out[logits + num_logits + logit + ahead] = row if num == 0 else len(lengths)
            for ahead in range(num):
                out[fed + logit - want + ahead] = token_ids[row, lengths[row] + ahead]
            logit += num + 1
            want += 1
    out[starts + num_rows] = token
    return out, num_tokens, num_logits, num_wanting, max_new, max_context, has_unknown, is_asking


@numba.njit(cache=True, nogil=True)
def _put(host: Ints, start: int, array: Longs, room: int, padding: int) -> int:
    """Write an array and padding behind it. Returns where its room ends."""
    for i in range(len(array)):
        host[start + i] = array[i]
    for i in range(start + len(array), start + room):
        host[i] = padding
    return start + room


@numba.njit(cache=True, nogil=True)
def stage(
    host: Ints,
    rooms: Longs,
    no_row: int,
    token_ids: Longs,
    positions: Longs,
    slots: Longs,
    logit_tokens: Longs,
    keep_rows: Longs,
    row_starts: Longs,
    context_lens: Longs,
    row_ids: Longs,
) -> None:
    """Write a step's arrays to `host` as staging.py lays them out, and padding: no_row's next input nobody needs.

    The rooms are those of an array of tokens, of logits, of row_starts and of rows.
    """
    start = _put(host, 0, token_ids, rooms[0], 0)
    start = _put(host, start, positions, rooms[0], 0)
    start = _put(host, start, slots, rooms[0], -1)
    start = _put(host, start, logit_tokens, rooms[1], 0)
    start = _put(host, start, keep_rows, rooms[1], no_row)
    start = _put(host, start, row_starts, rooms[2], len(token_ids))
    start = _put(host, start, context_lens, rooms[3], 0)
    _put(host, start, row_ids, rooms[3], 0)


@numba.njit(cache=True, nogil=True)
def put_runs(token_ids: Ints, lengths: Longs, rows: Longs, run_ids: Longs, first: Longs, counts: Longs) -> None:
    """Write counts[i] of run_ids, from first[i] on, behind the committed tokens of row rows[i]."""
    for i in range(len(rows)):
        row = rows[i]
        for ahead in range(counts[i]):
            token_ids[row, lengths[row] + ahead] = run_ids[first[i] + ahead]


@numba.njit(cache=True, nogil=True)
def append_runs(
    token_ids: Ints, lengths: Longs, num_at_hand: Longs, rows: Longs, run_ids: Longs, first: Longs, counts: Longs
) -> None:
    """Commit them; the rows' drafts at hand are used up."""
    put_runs(token_ids, lengths, rows, run_ids, first, counts)
    for i in range(len(rows)):
        lengths[rows[i]] += counts[i]
        num_at_hand[rows[i]] = 0


@numba.njit(cache=True, nogil=True)
def put_drafts(
    token_ids: Ints,
    lengths: Longs,
    num_at_hand: Longs,
    rows: Longs,
    num_wanted: Longs,
    vocab_size: int,
    draft_ids: Ints,
    survival: npt.NDArray[np.float64],
    counts: Longs,
) -> int:
    """Write counts[i] drafts behind the committed tokens of row rows[i], or none where they are nonsense.

    Returns:
        Rows whose drafts were left out; their count is 0 then.
    """
    num_faults = 0
    for i in range(len(rows)):
        num, row = counts[i], rows[i]
        is_sound = 0 <= num <= min(num_wanted[i], draft_ids.shape[1])
        if is_sound:
            for ahead in range(num):
                # What is no number is in no range.
                if not (0 <= draft_ids[i, ahead] < vocab_size and 0.0 <= survival[i, ahead] <= 1.0):
                    is_sound = False
        if not is_sound:
            counts[i] = 0
            num_faults += 1
            continue
        for ahead in range(num):
            token_ids[row, lengths[row] + ahead] = draft_ids[i, ahead]
        num_at_hand[row] = num
    return num_faults


@cache
def prepare() -> None:
    """Have all of it compiled, or its compiled form read from the disk, before a step depends on it."""
    table, numbers = np.zeros((1, 2), dtype=np.int32), np.zeros(1, dtype=np.int64)
    columns = np.array([[0], [0], [1], [0], [1]], dtype=np.int64)
    lay_out(columns, table, numbers, numbers, table, numbers, np.zeros(1, dtype=np.bool_), 1)
    stage(np.zeros(8, dtype=np.int32), np.ones(4, dtype=np.int64), 0, *[numbers] * 8)
    put_runs(table, numbers, numbers, numbers, numbers, numbers)
    append_runs(table, numbers, numbers.copy(), numbers, numbers, numbers, numbers)
    put_drafts(table, numbers, numbers.copy(), numbers, numbers, 1, table, np.zeros((1, 2)), numbers)
