"""How often a prefix cache of each size would find what it needs: LRU stack distances over blocks, all sizes at once.

The idea is Mattson's (1970): under LRU a cache holds the blocks used last, so an access is a hit in every cache that
is larger than the number of distinct blocks used since the block's last use. Knows nothing about requests' content.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from threefold.advise.logged import BLOCK_TOKENS
from threefold.advise.trace import TraceRequest

IntArray = npt.NDArray[np.int64]
NEVER = np.iinfo(np.int64).max


def stack_distances(names: npt.NDArray[np.uint64]) -> IntArray:
    """For each access, distinct names used since the same name's last use, itself included; NEVER at the first use.

    Access i, last used at p, is preceded by #{j < i: last use of j <= p} accesses that were the first of their name
    after p or came before it; those up to p are p + 1 of them, the rest is the number sought.
    """
    last = _last_use(names)
    earlier = _smaller_or_equal_before(last)
    distance = earlier - last
    return np.where(last < 0, NEVER, distance)


def _last_use(names: npt.NDArray[np.uint64]) -> IntArray:
    """[n], where the same name stood last before, -1 = nowhere."""
    order = np.argsort(names, kind="stable")
    same = names[order][1:] == names[order][:-1]
    last = np.full(len(names), -1, dtype=np.int64)
    last[order[1:][same]] = order[:-1][same]
    return last


def _smaller_or_equal_before(values: IntArray) -> IntArray:
    """[n], how many of the values before each are not greater: a merge sort's count, all halves of a level at once."""
    num = len(values)
    counts = np.zeros(num, dtype=np.int64)
    index = np.arange(num)
    span = np.int64(num + 2)
    width = 1
    while width < num:
        pair = index // (2 * width)
        is_left = (index // width) % 2 == 0
        keys = pair * span + values + 1  # a level's halves lie apart
        left = np.sort(keys[is_left])
        starts = np.searchsorted(left, pair[~is_left] * span, side="left")
        counts[~is_left] += np.searchsorted(left, keys[~is_left], side="right") - starts
        width *= 2
    return counts


def prompt_reuse(trace: Sequence[TraceRequest]) -> tuple[IntArray, int]:
    """What would be found: for each prompt block that was used before, the cache size in blocks that finds it.

    A prefix is found up to its first missing block, so a block needs what all before it need. The last prompt token is
    always computed.

    Returns:
        (sizes needed, tokens of all prompts).
    """
    if not trace:
        return np.zeros(0, dtype=np.int64), 0
    lengths = np.array([len(one.names) for one in trace])
    names = np.concatenate([one.names for one in trace])
    distances = stack_distances(names)
    found: list[IntArray] = []
    start = 0
    for request, length in zip(trace, lengths.tolist(), strict=True):
        num_prompt_blocks = min((request.num_prompt_tokens - 1) // BLOCK_TOKENS, length)
        needed = np.maximum.accumulate(distances[start : start + num_prompt_blocks])
        found.append(needed[needed < NEVER])
        start += length
    return np.concatenate(found), sum(one.num_prompt_tokens for one in trace)


def hit_rate(needed: IntArray, prompt_tokens: int, num_blocks: int | None) -> float:
    """Share of prompt tokens that a cache of so many blocks would find; None = a cache without end."""
    if not prompt_tokens:
        return 0.0
    num_hits = len(needed) if num_blocks is None else int((needed <= num_blocks).sum())
    return num_hits * BLOCK_TOKENS / prompt_tokens
