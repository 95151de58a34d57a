"""Prefix names and the two maps."""

from __future__ import annotations

from hashlib import sha256

from threefold.cache.prefix import BlockHasher, PrefixIndex, root_hash


def names(tokens: list[int], block_size: int, salt: str = "") -> list[bytes]:
    """Of all full blocks, computed at once."""
    found: list[bytes] = []
    BlockHasher(block_size).extend(found, tokens, len(tokens) // block_size, salt)
    return found


def test_a_name_stands_for_the_whole_prefix() -> None:
    first, second = names([1, 2, 3, 4], 2)

    assert names([1, 2, 3, 5], 2)[0] == first
    assert names([2, 1, 3, 4], 2)[0] != first
    assert names([9, 2, 3, 4], 2)[1] != second


def test_a_name_is_sha256_over_the_parents_name_and_64_bits_a_token() -> None:
    parent = root_hash("salt")
    for name, tokens in zip(names([1, 2**20, 3, 4], 2, "salt"), ((1, 2**20), (3, 4)), strict=True):
        parent = sha256(parent + b"".join(token.to_bytes(8, "little") for token in tokens)).digest()
        assert name == parent


def test_names_are_the_same_however_many_are_computed_at_once() -> None:
    hasher, tokens = BlockHasher(4), list(range(100, 131))
    for steps in (range(1, 8), (3, 7), (6, 7)):
        found: list[bytes] = []
        for num_blocks in steps:
            hasher.extend(found, tokens, num_blocks, "")
        assert found == names(tokens, 4)


def test_salts_part_the_chains_at_the_root() -> None:
    roots = {root_hash(salt) for salt in ("", "a", "b", "a\0", "\ud800")}

    assert len(roots) == 5


def test_a_salt_cannot_imitate_a_block() -> None:
    """A salt that spells out a block's parent and tokens must not get the block's name."""
    parent = root_hash("")
    (block,) = names([7], 1)
    salt = (parent + (7).to_bytes(8, "little")).decode("latin-1")

    assert root_hash(salt) != block


def test_the_first_of_equal_blocks_is_found() -> None:
    index = PrefixIndex()
    index.publish(b"name", 3)
    index.publish(b"name", 5)

    assert index.find([b"name"]) == [3]
    assert index.findable == {3}
    assert len(index) == 1


def test_nothing_is_found_behind_a_gap() -> None:
    index = PrefixIndex()
    for block_id, name in enumerate((b"1", b"2", b"4")):
        index.publish(name, block_id)

    assert index.find([b"1", b"2", b"3", b"4"]) == [0, 1]


def test_forgetting_is_complete() -> None:
    index = PrefixIndex()
    index.publish(b"name", 3)
    index.forget(3)

    assert index.find([b"name"]) == []
    assert not index.findable
    index.publish(b"name", 5)
    assert index.find([b"name"]) == [5]
    assert index.faults() == []


def test_maps_that_differ_are_a_fault() -> None:
    index = PrefixIndex()
    index.publish(b"name", 3)
    index._hash_of[4] = b"other"

    assert index.faults() == ["the maps hash -> block and block -> hash differ"]
