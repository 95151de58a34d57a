"""Who gets blocks for draft KV."""

from __future__ import annotations

from threefold.cache.manager import CacheManager
from threefold.schedule.lending import Lending
from threefold.step import RowPlan


def plan(request_id: int, num_computed: int, num_new: int, next_draft: int) -> RowPlan:
    return RowPlan(request_id, num_computed, num_new, 0, (), True, next_draft)


def test_rows_that_are_asked_for_drafts_get_room_for_their_text_and_the_draft() -> None:
    lending = Lending(CacheManager(100, 4).loans, block_tokens=8)

    lent = lending.lend([plan(1, 10, 1, 4), plan(2, 10, 1, 0), plan(3, 0, 40, 3)], num_spare=0)

    assert {key: len(blocks) for key, blocks in lent.items()} == {1: 2, 3: 6}  # 10+1+1+4 tokens, and 40+1+3
    assert lending.lend([plan(1, 11, 1, 3)], num_spare=0) == {}
    assert {key: len(blocks) for key, blocks in lending.lend([plan(1, 11, 1, 4)], num_spare=0).items()} == {1: 1}


def test_nothing_is_lent_where_no_drafter_keeps_kv_or_others_need_the_blocks() -> None:
    assert Lending(CacheManager(100, 4).loans, block_tokens=0).lend([plan(1, 10, 1, 4)], num_spare=0) == {}
    assert Lending(CacheManager(10, 4).loans, block_tokens=4).lend([plan(1, 10, 1, 4)], num_spare=10) == {}
