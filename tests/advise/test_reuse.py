from collections import OrderedDict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from threefold.advise.reuse import NEVER, hit_rate, prompt_reuse, stack_distances
from threefold.advise.trace import TraceRequest, block_names


def lru_hits(names: list[int], size: int) -> list[bool]:
    """The plain way: a cache of this size, one access after the other."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = []
    for name in names:
        hits.append(name in cache)
        cache[name] = None
        cache.move_to_end(name)
        if len(cache) > size:
            cache.popitem(last=False)
    return hits


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 12))
def test_distances_say_what_an_lru_cache_of_any_size_finds(names, size):
    distances = stack_distances(np.array(names, dtype=np.uint64))
    assert (distances <= size).tolist() == lru_hits(names, size)


def test_first_uses_are_never_found():
    assert (stack_distances(np.arange(5, dtype=np.uint64)) == NEVER).all()


def request(tokens: list[int]) -> TraceRequest:
    return TraceRequest(len(tokens), 1, block_names(tokens))


def test_a_log_of_which_four_fifths_is_shared():
    shared = list(range(640))
    trace = [request(shared + [10_000 + 200 * index + place for place in range(160)]) for index in range(50)]
    needed, prompt_tokens = prompt_reuse(trace)
    assert prompt_tokens == 50 * 800
    assert hit_rate(needed, prompt_tokens, None) == 0.8 * 49 / 50
    assert hit_rate(needed, prompt_tokens, 30) == 0.0, "a cache smaller than a request never finds anything"
    assert hit_rate(needed, prompt_tokens, 50) == 0.8 * 49 / 50


def test_the_last_token_is_always_computed():
    tokens = list(range(32))
    needed, prompt_tokens = prompt_reuse([request(tokens), request(tokens)])
    assert hit_rate(needed, prompt_tokens, None) == 16 / 64


def test_an_empty_trace():
    needed, prompt_tokens = prompt_reuse([])
    assert hit_rate(needed, prompt_tokens, None) == 0.0
