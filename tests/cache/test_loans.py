"""Loans: what nobody needs, taken back the moment somebody does, and no prefix lost for long."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from threefold.cache.manager import CacheManager
from threefold.request import Request, SamplingParams

MakeRequest = Callable[..., Request]


def compute(cache: CacheManager, request: Request) -> None:
    assert cache.allocate(request, request.num_tokens) is not None
    request.num_computed = request.num_tokens
    cache.publish(request, 0)


def test_a_loan_grows_to_what_is_asked(cache: CacheManager) -> None:
    first = cache.loans.extend(7, 2, num_spare=0)
    more = cache.loans.extend(7, 3, num_spare=0)

    assert len(first) == 2
    assert len(more) == 1
    assert not set(first) & set(more)
    assert cache.loans.extend(7, 3, num_spare=0) == ()
    assert cache.loans.num_blocks == 3
    cache.check_integrity()


def test_a_loan_is_all_or_nothing_and_leaves_the_spare_blocks(cache: CacheManager) -> None:
    assert cache.loans.extend(1, 7, num_spare=2) == ()
    assert cache.loans.extend(1, 9, num_spare=0) == ()
    assert len(cache.loans.extend(1, 6, num_spare=2)) == 6


def test_lent_blocks_count_as_available_and_go_to_whoever_needs_them(
    cache: CacheManager, make_request: MakeRequest
) -> None:
    cache.loans.extend(1, 3, num_spare=0)
    cache.loans.extend(2, 3, num_spare=0)
    assert (cache.num_free_blocks, cache.num_held_blocks) == (8, 0)
    request = make_request([1] * 20)

    taken = cache.allocate(request, 20)

    assert taken is not None
    assert len(taken) == 5
    assert cache.loans.take_recalled() == [1]  # the one extended longest ago, whole
    assert cache.loans.take_recalled() == []
    cache.check_integrity([request])
    assert cache.loans.extend(1, 1, num_spare=0) == ()  # nothing is left


def test_a_loan_ends_with_its_request(cache: CacheManager, make_request: MakeRequest) -> None:
    request = make_request([1] * 4)
    cache.allocate(request, 4)
    cache.loans.extend(request.request_id, 2, num_spare=0)

    cache.free(request)

    assert cache.loans.num_blocks == 0
    assert cache.loans.take_recalled() == []  # whoever left is forgotten anyway
    cache.check_integrity()


def test_cached_blocks_are_lent_only_when_none_is_free(cache: CacheManager, make_request: MakeRequest) -> None:
    old = make_request([1, 2, 3, 4, 5, 6, 7, 8, 9])
    compute(cache, old)
    cache.free(old)

    cache.loans.extend(1, 6, num_spare=0)

    assert cache.match(make_request([1, 2, 3, 4, 5, 6, 7, 8, 9])) == 8


def test_a_prefix_lost_to_a_loan_ends_loans_before_the_next_is_lost(
    cache: CacheManager, make_request: MakeRequest
) -> None:
    old = make_request([1, 2, 3, 4, 5, 6, 7, 8, 9])
    compute(cache, old)
    cache.free(old)
    cache.loans.extend(1, 8, num_spare=0)  # the two cached blocks too
    assert cache.match(make_request([1, 2, 3, 4, 5, 6, 7, 8, 9])) == 0  # the loss is noticed
    cache.loans.end(1)
    compute(cache, old)
    cache.free(old)

    assert cache.loans.extend(1, 8, num_spare=0) == ()
    assert len(cache.loans.extend(1, 6, num_spare=0)) == 6
    newcomer = make_request([9] * 12)
    assert cache.allocate(newcomer, 12) is not None
    assert cache.loans.take_recalled() == [1]  # rather than evict what is findable
    assert cache.match(make_request([1, 2, 3, 4, 5, 6, 7, 8, 9])) == 8


def test_trust_returns_when_as_many_blocks_were_taken_as_there_are(
    cache: CacheManager, make_request: MakeRequest
) -> None:
    old = make_request([1, 2, 3, 4, 5])
    compute(cache, old)
    cache.free(old)
    cache.loans.extend(1, 8, num_spare=0)
    cache.match(make_request([1, 2, 3, 4, 5]))
    cache.loans.end(1)
    for _ in range(4):
        passing = make_request([7] * 8)
        cache.allocate(passing, 8)
        cache.free(passing)
    compute(cache, old)
    cache.free(old)

    assert len(cache.loans.extend(1, 8, num_spare=0)) == 8


@given(
    st.lists(
        st.tuples(st.sampled_from(["lend", "end", "take", "free", "match"]), st.integers(0, 4), st.integers(1, 30)),
        max_size=60,
    )
)
def test_whatever_happens_blocks_are_conserved_and_requests_never_wait_for_loans(
    moves: list[tuple[str, int, int]],
) -> None:
    lending, plain = CacheManager(10, 4), CacheManager(10, 4)

    def make(key: int) -> Request:
        return Request(key, [key] * 41, SamplingParams(), max_total_tokens=50, end_token_ids=frozenset())

    held = {cache: {key: make(key) for key in range(5)} for cache in (lending, plain)}
    for move, key, amount in moves:
        if move == "lend":
            lending.loans.extend(key, amount, num_spare=1)
        elif move == "end":
            lending.loans.end(key)
        elif move == "take":
            results = [cache.allocate(held[cache][key], amount) for cache in (lending, plain)]
            assert (results[0] is None) == (results[1] is None)
        elif move == "free":
            for cache in (lending, plain):
                cache.free(held[cache][key])
        assert lending.num_free_blocks == plain.num_free_blocks
        lending.check_integrity(held[lending].values())
