"""Prefix names and the two maps."""

from __future__ import annotations

from threefold.cache.prefix import PrefixIndex, block_hash, root_hash


def test_a_name_stands_for_the_whole_prefix() -> None:
    root = root_hash("")
    first = block_hash(root, [1, 2])

    assert block_hash(root, [1, 2]) == first
    assert block_hash(root, [2, 1]) != first
    assert block_hash(first, [3, 4]) != block_hash(block_hash(root, [9, 2]), [3, 4])


def test_salts_part_the_chains_at_the_root() -> None:
    names = {root_hash(salt) for salt in ("", "a", "b", "a\0", "\ud800")}

    assert len(names) == 5


def test_a_salt_cannot_imitate_a_block() -> None:
    """A salt that spells out a block's parent and tokens must not get the block's name."""
    parent = root_hash("")
    block = block_hash(parent, [7])
    salt = (parent + (7).to_bytes(8, "little")).decode("latin-1")

    assert root_hash(salt) != block


def test_the_first_of_equal_blocks_is_found() -> None:
    index = PrefixIndex()
    index.publish(b"name", 3)
    index.publish(b"name", 5)

    assert index.find(b"name") == 3
    assert 3 in index
    assert 5 not in index
    assert len(index) == 1


def test_forgetting_is_complete() -> None:
    index = PrefixIndex()
    index.publish(b"name", 3)
    index.forget(3)

    assert index.find(b"name") is None
    assert 3 not in index
    index.publish(b"name", 5)
    assert index.find(b"name") == 5
    assert index.faults() == []


def test_maps_that_differ_are_a_fault() -> None:
    index = PrefixIndex()
    index.publish(b"name", 3)
    index._hash_of[4] = b"other"

    assert index.faults() == ["the maps hash -> block and block -> hash differ"]
