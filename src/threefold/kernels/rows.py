"""A step's rows as attention sees them, and how their work is cut into items for the compiled body.

Knows nothing about tensors. An item is some new tokens of one row with the chunks of context they see; threads take
items one by one. Cutting changes no number: chunks are merged in the order of their positions either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

CHUNK_TOKENS = 128


class RowSpan(NamedTuple):
    """One row of a step."""

    first_token: int
    """Its first new token in the step."""
    num_new: int
    """Tokens fed."""
    num_context: int
    """Tokens whose KV is there after the step, new ones included."""


class Item(NamedTuple):
    """What one thread takes on, for one KV head at a time; read by native/attention.py in this order."""

    row: int
    first_token: int
    num_tokens: int
    first_position: int
    """Position of the first token in its row."""
    first_chunk: int
    end_chunk: int
    part: int = 0
    """Where this item's state goes, when its tokens' chunks are spread over several items."""
    first_part: int = 0
    num_parts: int = 1


def whole_items(rows: Sequence[RowSpan], max_tokens: int, window: int) -> list[Item]:
    """Items of at most max_tokens new tokens, each with all the context they see."""
    items = []
    for index, (first_token, num_new, num_context) in enumerate(rows):
        for start in range(0, num_new, max_tokens):
            num_tokens = min(max_tokens, num_new - start)
            position = num_context - num_new + start
            first_chunk = max(0, position + 1 - window) // CHUNK_TOKENS
            end_chunk = (position + num_tokens - 1) // CHUNK_TOKENS + 1
            items.append(Item(index, first_token + start, num_tokens, position, first_chunk, end_chunk))
    return items


def in_parts(items: Sequence[Item]) -> list[Item]:
    """The same work with one item a chunk, so that few rows keep all threads busy."""
    parts: list[Item] = []
    for item in items:
        first = len(parts)
        num_parts = item.end_chunk - item.first_chunk
        for chunk in range(item.first_chunk, item.end_chunk):
            parts.append(
                item._replace(
                    first_chunk=chunk, end_chunk=chunk + 1, part=len(parts), first_part=first, num_parts=num_parts
                )
            )
    return parts


def longest_first(items: Sequence[Item]) -> list[Item]:
    """The order in which threads end nearly together."""
    return sorted(items, key=lambda item: item.num_tokens * (item.first_chunk - item.end_chunk))
