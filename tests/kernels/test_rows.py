"""Items cover each new token and each chunk it sees exactly once, however the work is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from threefold.kernels.rows import CHUNK_TOKENS, Item, RowSpan, in_parts, longest_first, whole_items

ROWS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 900)), min_size=1, max_size=6)


def spans(sizes: list[tuple[int, int]]) -> list[RowSpan]:
    rows, first = [], 0
    for num_new, num_before in sizes:
        rows.append(RowSpan(first, num_new, num_new + num_before))
        first += num_new
    return rows


def chunks_of(items: list[Item]) -> list[tuple[int, int]]:
    return sorted(
        (token, chunk)
        for item in items
        for token in range(item.first_token, item.first_token + item.num_tokens)
        for chunk in range(item.first_chunk, item.end_chunk)
    )


@given(ROWS, st.integers(1, 20), st.integers(1, 2000))
def test_every_token_meets_every_chunk_it_sees_once(sizes: list[tuple[int, int]], most: int, window: int) -> None:
    rows = spans(sizes)
    items = whole_items(rows, most, window)

    pairs = chunks_of(items)

    assert len(set(pairs)) == len(pairs)
    assert pairs == chunks_of(in_parts(items)) == chunks_of(longest_first(items))
    for row in rows:
        for ahead in range(row.num_new):
            position = row.num_context - row.num_new + ahead
            seen = range(max(0, position + 1 - window) // CHUNK_TOKENS, position // CHUNK_TOKENS + 1)
            assert all((row.first_token + ahead, chunk) in pairs for chunk in seen)


@given(ROWS)
def test_parts_of_an_item_name_each_other(sizes: list[tuple[int, int]]) -> None:
    parts = in_parts(whole_items(spans(sizes), 8, 1 << 40))

    assert list(range(len(parts))) == [item.part for item in parts]
    assert all(item.first_part <= item.part < item.first_part + item.num_parts for item in parts)
