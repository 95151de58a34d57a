"""Blocks are free, cached or held, and never two of these."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from threefold.cache.blocks import BlockPool
from threefold.cache.prefix import PrefixIndex


@pytest.fixture
def index() -> PrefixIndex:
    return PrefixIndex()


@pytest.fixture
def pool(index: PrefixIndex) -> BlockPool:
    return BlockPool(4, index)


def counts(pool: BlockPool) -> tuple[int, int, int]:
    return pool.num_available - pool.num_cached, pool.num_cached, pool.num_held


def test_a_block_goes_from_free_to_held_and_back(pool: BlockPool) -> None:
    assert counts(pool) == (4, 0, 0)
    taken = pool.take(3)
    assert len(set(taken)) == 3
    assert counts(pool) == (1, 0, 3)
    pool.release(taken)
    assert counts(pool) == (4, 0, 0)
    assert pool.faults([]) == []


def test_a_findable_block_is_kept_when_released(pool: BlockPool, index: PrefixIndex) -> None:
    (block_id,) = pool.take(1)
    index.publish(b"name", block_id)
    pool.release([block_id])

    assert counts(pool) == (3, 1, 0)
    pool.hold([block_id])
    assert counts(pool) == (3, 0, 1)
    assert pool.faults([block_id]) == []


def test_a_shared_block_is_held_until_the_last_one_lets_go(pool: BlockPool) -> None:
    (block_id,) = pool.take(1)
    pool.hold([block_id])
    pool.release([block_id])
    assert counts(pool) == (3, 0, 1)
    pool.release([block_id])
    assert counts(pool) == (4, 0, 0)


def test_free_blocks_go_first_then_the_longest_unused(pool: BlockPool, index: PrefixIndex) -> None:
    blocks = pool.take(4)
    for block_id in blocks[:3]:
        index.publish(bytes([block_id]), block_id)
    pool.release([blocks[1], blocks[0], blocks[2], blocks[3]])
    pool.hold([blocks[1]])
    pool.release([blocks[1]])  # used again, so it is the newest now

    assert pool.take(4) == [blocks[3], blocks[0], blocks[2], blocks[1]]
    assert len(index) == 0, "what is overwritten is no longer found"


def test_forgetting_the_cache_frees_it(pool: BlockPool, index: PrefixIndex) -> None:
    first, second = pool.take(2)
    index.publish(b"1", first)
    index.publish(b"2", second)
    pool.release([first])
    pool.forget_cached()

    assert counts(pool) == (3, 0, 1)
    pool.release([second])
    assert counts(pool) == (4, 0, 0)
    assert pool.faults([]) == []


Breakage = Callable[[BlockPool, PrefixIndex, int], None]


@pytest.mark.parametrize(
    ("breakage", "message"),
    [
        (lambda pool, index, block: pool._free.append(block), "free 4 + cached 0 + held 1 + lent 0 is not 4"),
        (lambda pool, index, block: pool._free.pop(), "free 2 + cached 0 + held 1 + lent 0 is not 4"),
        (lambda pool, index, block: pool.hold([block]), "the counts of holders are not those of the requests"),
        (lambda pool, index, block: index.publish(b"x", pool._free[0]), "a free or lent block is findable"),
        (lambda pool, index, block: pool._cached.update({pool._free.pop(): None}), "a cached block is not findable"),
    ],
)
def test_each_breach_of_the_law_is_named(pool: BlockPool, index: PrefixIndex, breakage: Breakage, message: str) -> None:
    (block_id,) = pool.take(1)
    assert pool.faults([block_id]) == []
    breakage(pool, index, block_id)

    assert message in pool.faults([block_id])
