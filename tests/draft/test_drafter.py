import numpy as np
import pytest

from threefold.draft.drafter import Draft, RowDrafts

DRAFTS = RowDrafts(
    np.array([[1, 2], [3, 0], [0, 0]], dtype=np.int32),
    np.array([[0.9, 0.5], [0.25, 0.0], [0.0, 0.0]]),
    np.array([2, 1, 0]),
)


def test_drafts_of_rows_are_those_of_their_requests() -> None:
    assert DRAFTS.by_request([7, 4, 5]) == {7: Draft([1, 2], (0.9, 0.5)), 4: Draft([3], (0.25,))}


def test_each_row_has_a_request() -> None:
    with pytest.raises(ValueError, match="longer"):
        DRAFTS.by_request([7])
