"""Rows that are kept column by column are the same rows."""

from __future__ import annotations

from threefold.step import ColumnRows, RowColumns, RowPlan, RowResult, StepPlan, TokenRows

ROWS = [RowPlan(3, 0, 4, 0, (1,), True, 0), RowPlan(5, 7, 3, 2, (), True, 4), RowPlan(9, 2, 2, 0, (), False, 0)]


def test_planned_rows_come_out_of_their_columns_as_they_went_in() -> None:
    rows = ColumnRows(RowColumns.of(ROWS))
    assert len(rows) == 3
    assert (rows[1], rows[-1], rows[1:], list(rows)) == (ROWS[1], ROWS[2], ROWS[1:], ROWS)
    assert rows == ROWS
    assert ROWS == rows
    assert rows != ROWS[:2]
    assert StepPlan(rows) == StepPlan(ROWS)
    assert StepPlan(rows).columns is rows.columns
    assert StepPlan(rows).num_tokens == 9


def test_columns_go_on_with_those_of_other_rows() -> None:
    assert ColumnRows(RowColumns.of(ROWS[:1]).followed_by(ROWS[1:])) == ROWS
    columns = RowColumns.of(ROWS)
    assert columns.followed_by([]) is columns
    assert ColumnRows(RowColumns().followed_by(ROWS)) == ROWS


def test_rows_that_have_tokens_only_are_results_like_others() -> None:
    rows = TokenRows([[7], [8, 9]])
    assert rows == [RowResult([7]), RowResult([8, 9])]
    assert (rows[1], rows[:1], len(rows)) == (RowResult([8, 9]), [RowResult([7])], 2)
    assert rows != [RowResult([7]), RowResult([8, 9], num_drafted=1)]
