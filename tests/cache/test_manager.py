"""What requests hold and what they find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from threefold.cache.manager import CacheManager
from threefold.request import Request

MakeRequest = Callable[..., Request]


def compute(cache: CacheManager, request: Request) -> None:
    """Hold slots for all tokens, and publish them as computed."""
    assert cache.allocate(request, request.num_tokens) is not None
    before, request.num_computed = request.num_computed, request.num_tokens
    cache.publish(request, before)


def test_allocation_is_by_the_block_and_only_of_what_is_missing(cache: CacheManager, make_request: MakeRequest) -> None:
    request = make_request([1] * 9)

    assert cache.allocate(request, 9) == tuple(request.block_ids)
    assert len(request.block_ids) == 3
    assert cache.allocate(request, 12) == ()
    more = cache.allocate(request, 13)
    assert more == (request.block_ids[3],)
    assert (cache.num_free_blocks, cache.num_held_blocks) == (4, 4)
    cache.check_integrity([request])


def test_allocation_is_all_or_nothing(cache: CacheManager, make_request: MakeRequest) -> None:
    request = make_request([1] * 40)

    assert cache.allocate(request, 33) is None
    assert request.block_ids == []
    assert cache.allocate(request, 32, num_spare=1) is None
    assert cache.num_free_blocks == 8
    assert cache.allocate(request, 32) is not None
    assert cache.num_free_blocks == 0


def test_a_prefix_is_found_by_the_full_block(cache: CacheManager, make_request: MakeRequest) -> None:
    first = make_request([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    compute(cache, first)
    second = make_request([1, 2, 3, 4, 5, 6, 7, 8, 99, 98])

    assert cache.match(second) == 8
    assert second.block_ids == first.block_ids[:2]
    third = make_request([1, 2, 3, 4, 5, 0, 7, 8, 9])
    assert cache.match(third) == 4
    cache.check_integrity([first, second, third])


def test_a_hit_never_covers_the_whole_prompt(cache: CacheManager, make_request: MakeRequest) -> None:
    compute(cache, make_request([1, 2, 3, 4, 5, 6, 7, 8]))

    assert cache.match(make_request([1, 2, 3, 4, 5, 6, 7, 8])) == 4
    assert cache.match(make_request([1, 2, 3, 4])) == 0


def test_prompt_logprobs_and_other_salts_find_nothing(cache: CacheManager, make_request: MakeRequest) -> None:
    tokens = [1, 2, 3, 4, 5]
    compute(cache, make_request(tokens, salt="mine"))

    assert cache.match(make_request(tokens, salt="mine")) == 4
    assert cache.match(make_request(tokens)) == 0
    assert cache.match(make_request(tokens, salt="other")) == 0
    assert cache.match(make_request(tokens, salt="mine", prompt_logprobs=0)) == 0


def test_without_prefix_caching_nothing_is_kept(make_request: MakeRequest) -> None:
    cache = CacheManager(num_blocks=8, block_size=4, enable_prefix_caching=False)
    request = make_request([1, 2, 3, 4, 5])
    compute(cache, request)
    cache.free(request)

    assert cache.num_cached_blocks == 0
    assert cache.match(make_request([1, 2, 3, 4, 5])) == 0
    assert request.block_hashes == []


def test_only_computed_blocks_are_findable(cache: CacheManager, make_request: MakeRequest) -> None:
    request = make_request([1, 2, 3, 4, 5, 6, 7, 8, 9])
    cache.allocate(request, 9)
    request.num_computed = 7
    cache.publish(request, 0)

    assert cache.match(make_request([1, 2, 3, 4, 5, 6, 7, 8, 9])) == 4


def test_the_beginning_of_a_prefix_survives_longest(cache: CacheManager, make_request: MakeRequest) -> None:
    tokens = list(range(16))
    request = make_request(tokens)
    compute(cache, request)
    cache.free(request)
    assert cache.num_cached_blocks == 4
    intruder = make_request([77] * 24)
    cache.allocate(intruder, 24)  # four free blocks and two of the cached ones

    assert cache.match(make_request([*tokens, 0])) == 8


def test_equal_prefixes_computed_side_by_side_keep_one_copy(cache: CacheManager, make_request: MakeRequest) -> None:
    first, second = make_request([1, 2, 3, 4, 5]), make_request([1, 2, 3, 4, 6])
    compute(cache, first)
    compute(cache, second)
    assert first.block_ids[0] != second.block_ids[0]
    cache.free(second)
    cache.free(first)

    assert cache.num_cached_blocks == 1
    cache.check_integrity()


def test_hashes_grow_with_the_output(cache: CacheManager, make_request: MakeRequest) -> None:
    """A follow-up that repeats the answer finds it."""
    request = make_request([1, 2, 3])
    compute(cache, request)
    request.token_ids += [4, 5, 6]
    compute(cache, request)

    assert cache.match(make_request([1, 2, 3, 4, 5, 6])) == 4


def test_reset_forgets_what_is_free_and_what_is_held(cache: CacheManager, make_request: MakeRequest) -> None:
    free, held = make_request([1, 2, 3, 4, 5]), make_request([6, 7, 8, 9, 10])
    compute(cache, free)
    compute(cache, held)
    cache.free(free)

    assert cache.reset_prefix_cache()
    assert cache.match(make_request([1, 2, 3, 4, 5])) == 0
    assert cache.match(make_request([6, 7, 8, 9, 10])) == 0
    cache.check_integrity([held])
    cache.free(held)
    assert cache.num_free_blocks == 8
    cache.check_integrity()


def test_a_leak_is_told(cache: CacheManager, make_request: MakeRequest) -> None:
    request = make_request([1])
    cache.allocate(request, 1)

    with pytest.raises(AssertionError, match="KV cache: the counts of holders"):
        cache.check_integrity()
