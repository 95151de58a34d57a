"""Requests as the cache sees them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from threefold.cache.manager import CacheManager
from threefold.request import Request, SamplingParams


@pytest.fixture
def make_request() -> Callable[..., Request]:
    ids = itertools.count()

    def make(tokens: list[int], *, salt: str = "", prompt_logprobs: int | None = None) -> Request:
        params = SamplingParams(prompt_logprobs=prompt_logprobs)
        return Request(next(ids), tokens, params, max_total_tokens=1000, end_token_ids=frozenset(), cache_salt=salt)

    return make


@pytest.fixture
def cache() -> CacheManager:
    return CacheManager(num_blocks=8, block_size=4)
