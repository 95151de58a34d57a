from __future__ import annotations

import math

import numpy as np
import pytest

from threefold.draft.drafter import RowDrafts


def test_a_row_holds_tokens_blocks_and_drafts(rows, new_row):
    row = rows.add(new_row(7, (5, 6, 7)))
    rows.grow(row, (9, 4))
    rows.grow(row, (2,))
    rows.append(row, [8, 9])
    rows.set_draft(row, [1, 2, 3])
    assert rows.token_ids[row, :8].tolist() == [5, 6, 7, 8, 9, 1, 2, 3]
    assert rows.lengths[row] == 5
    assert rows.block_tables[row, :3].tolist() == [9, 4, 2]
    assert rows.draft(row, 2) == [1, 2]
    assert rows.num_drafts[row] == 3


def test_committing_uses_up_the_drafts(rows, new_row):
    row = rows.add(new_row(0))
    rows.set_draft(row, [4, 5])
    rows.append(row, [4])
    assert rows.num_drafts[row] == 0
    assert rows.token_ids[row, :4].tolist() == [1, 2, 3, 4]


def test_rows_are_used_again_without_leftovers(rows, new_row):
    for request_id in range(10):
        row = rows.add(new_row(request_id, (request_id,) * 3, logit_bias={1: 1.0}))
        rows.grow(row, (1, 2))
        rows.set_draft(row, [3])
        assert rows.drop(request_id)
        assert request_id not in rows
    row = rows.add(new_row(11))
    assert rows.num_blocks[row] == rows.num_drafts[row] == 0
    assert rows.sampling.transforms[row] is None


def test_dropping_what_was_never_added_is_nothing(rows):
    assert not rows.drop(99)


def test_more_requests_than_rows_is_an_error_of_ours(rows, new_row):
    for request_id in range(4):
        rows.add(new_row(request_id))
    with pytest.raises(RuntimeError, match="more than 4"):
        rows.add(new_row(4))


def test_a_full_row_has_room_for_drafts_that_length_will_cut_off(rows, new_row):
    row = rows.add(new_row(0, tuple(range(39))))
    rows.append(row, [7])
    rows.set_draft(row, [1, 2, 3])
    rows.append(row, [1, 2, 3, 4])
    assert rows.lengths[row] == 44


def test_several_rows_at_once_are_as_one_after_another(rows, new_row):
    ids = [rows.add(new_row(request_id, tuple(range(1, 3 + request_id)))) for request_id in range(3)]
    one_by_one = rows.token_ids.copy()
    lengths = rows.lengths.copy()
    committed, drafts = [[7], [], [8, 9, 10]], [[11, 12], [13], []]
    for row, tokens, draft in zip(ids, committed, drafts, strict=True):
        start = int(lengths[row])
        one_by_one[row, start : start + len(tokens) + len(draft)] = tokens + draft
    rows.append_many(np.array(ids), committed)
    rows.set_drafts(np.array(ids), drafts)
    assert np.array_equal(rows.token_ids, one_by_one)
    assert (rows.lengths - lengths)[ids].tolist() == [1, 0, 3]
    assert rows.num_drafts[ids].tolist() == [2, 1, 0]
    assert [rows.draft(row, 2) for row in ids[:1]] == [[11, 12]]


def test_one_token_of_several_rows(rows, new_row):
    ids = np.array([rows.add(new_row(request_id, (1, 2))) for request_id in range(2)])
    rows.set_drafts(ids, [[5], [6]])
    rows.append_one(ids, np.array([7, 8]))
    assert rows.token_ids[ids, 2].tolist() == [7, 8]
    assert rows.lengths[ids].tolist() == [3, 3]
    assert rows.num_drafts[ids].tolist() == [0, 0]
    assert rows.num_drops.tolist() == [0] * len(rows.lengths)
    rows.drop(0)
    assert rows.num_drops[ids].tolist() == [1, 0], "row by row"


def test_growth_names_the_entries_that_were_written(rows, new_row):
    row = rows.add(new_row(1))
    rows.grow(row, (3, 1))
    rows.grow(row, (2,))
    places, block_ids = rows.take_growth()
    assert block_ids == [3, 1, 2]
    assert rows.block_tables.reshape(-1)[places].tolist() == block_ids
    assert rows.take_growth() == ([], [])


def test_runs_of_the_tokens_drawn_are_committed_as_they_lie(rows, new_row):
    first = rows.add(new_row(0, (1, 2)))
    second = rows.add(new_row(1, (7,), repetition_penalty=1.5))
    rows.set_drafts(np.array([first, second]), [[5, 6], [8]])
    assert rows.num_drafts[[first, second]].tolist() == [2, 1]
    drawn = np.array([5, 9, 0, 8, 4])
    rows.append_runs(np.array([second, first]), drawn, np.array([3, 0]), np.array([2, 1]), [[8, 4], [5]])
    assert rows.token_ids[first, :3].tolist() == [1, 2, 5]
    assert rows.token_ids[second, :3].tolist() == [7, 8, 4]
    assert rows.lengths[[first, second]].tolist() == [3, 3]
    assert rows.num_drafts[[first, second]].tolist() == [0, 0]
    history = rows.sampling.transforms[second].history
    assert [sorted(ids.tolist()) for ids, _ in history.counted([])] == [[4, 7, 8]]


def test_rows_with_wishes_are_counted(rows, new_row):
    rows.add(new_row(0))
    rows.add(new_row(1, temperature=1.0))
    rows.add(new_row(2, logprobs=1))
    assert rows.sampling.num_wishing == 2
    rows.drop(1)
    rows.drop(0)
    assert rows.sampling.num_wishing == 1
    rows.add(new_row(3))
    assert rows.sampling.num_wishing == 1


@pytest.mark.parametrize(
    ("draft_ids", "survival", "count"),
    [([4, 32], [0.9, 0.5], 2), ([-1, 3], [0.9, 0.5], 2), ([4, 5], [0.9, 1.5], 2), ([4, 5], [math.nan, 0.1], 2)]
    + [([4, 5], [0.9, 0.5], count) for count in (3, -1)],
)
def test_drafts_with_nonsense_in_them_are_left_out(rows, new_row, draft_ids, survival, count):
    places = np.array([rows.add(new_row(request_id)) for request_id in (1, 2)])
    drafts = RowDrafts(
        np.array([[7, 8], draft_ids], dtype=np.int32), np.array([[1.0, 0.0], survival]), np.array([2, count])
    )
    assert rows.put_drafts(places, drafts, np.array([2, 2]), 32) == 1
    assert drafts.counts.tolist() == [2, 0]
    assert rows.num_drafts[places].tolist() == [2, 0]
    assert rows.draft(int(places[0]), 2) == [7, 8]


def test_drafts_longer_than_wanted_are_nonsense(rows, new_row):
    row = np.array([rows.add(new_row(1))])
    drafts = RowDrafts(np.ones((1, 3), dtype=np.int32), np.ones((1, 3)), np.array([3]))
    assert rows.put_drafts(row, drafts, np.array([2]), 32) == 1
    assert rows.num_drafts[row] == 0
