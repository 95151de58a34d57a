"""Block sizes of the attention bodies for one H200: data, no code to speak of.

`python -m threefold.bench.kernels_attention --sweep` measures them again.
"""

from __future__ import annotations

from typing import NamedTuple


class DecodeSizes(NamedTuple):
    """How rows of few new tokens are served: memory-bound, so what counts is how many bytes are under way."""

    block_n: int
    """Context tokens a step of the loop takes."""
    num_warps: int
    num_stages: int
    num_programs: int
    """Contexts are split until there are so many programs: some for each multiprocessor."""


class PromptSizes(NamedTuple):
    """How rows of many new tokens are served: bound by the tensor cores."""

    block_m: int
    """Query heads times tokens a program takes."""
    block_n: int
    num_warps: int
    num_stages: int


class ProductSizes(NamedTuple):
    """How a product of few tokens is cut."""

    block_n: int
    """Outputs of a program."""
    block_k: int
    """Inputs a step of the loop takes, of each piece."""
    num_warps: int
    num_stages: int
    num_pieces: int = 1
    """Warps that have inputs of their own; else all share them. It changes the order of a sum."""


_DECODE = {  # (padded head width, bytes of a number of the cache)
    (64, 1): DecodeSizes(64, 4, 4, 1056),
    (64, 2): DecodeSizes(64, 4, 4, 1056),
    (128, 1): DecodeSizes(64, 4, 2, 528),
    (128, 2): DecodeSizes(64, 4, 3, 528),
}
_DECODE_NARROW = {  # in tiles of 16 rows: up to so many rows times KV heads
    (64, 2): (
        (48, DecodeSizes(128, 4, 2, 264)),
        (132, DecodeSizes(128, 4, 2, 528)),
        (1024, DecodeSizes(128, 4, 3, 264)),
    ),
    (128, 1): ((128, DecodeSizes(128, 4, 2, 264)), (2048, DecodeSizes(128, 4, 3, 528))),
    (128, 2): (
        (64, DecodeSizes(128, 4, 2, 264)),
        (128, DecodeSizes(64, 4, 2, 528)),
        (264, DecodeSizes(64, 4, 3, 528)),
        (528, DecodeSizes(64, 4, 2, 528)),
    ),
}
_PROMPT = {
    (64, 1): PromptSizes(128, 64, 8, 3),
    (64, 2): PromptSizes(128, 64, 8, 3),
    (128, 1): PromptSizes(128, 64, 8, 3),
    (128, 2): PromptSizes(64, 64, 4, 2),
}
_MIXED = {  # rows of few tokens and prompts in one launch: the latter's number of warps is that of both
    (64, 1): (DecodeSizes(64, 4, 4, 264), PromptSizes(64, 64, 4, 3)),
    (64, 2): (DecodeSizes(64, 4, 4, 264), PromptSizes(64, 64, 4, 3)),
    (128, 1): (DecodeSizes(64, 4, 4, 264), PromptSizes(64, 64, 4, 3)),
    (128, 2): (DecodeSizes(64, 4, 3, 264), PromptSizes(64, 32, 4, 3)),
}
_WIDE_DECODE = DecodeSizes(32, 4, 2, 1056)  # wide heads and float32: what fits into shared memory
_WIDE_PROMPT = PromptSizes(64, 32, 4, 2)
_NARROW = 64
_SHORT = 1024
_VOCABULARY = 32768
_WIDE = 4096
_FEW_OUTPUTS = 2048
_LONG = 8192
_ONE_TILE = 8


def decode_sizes(padded_width: int, kv_bytes: int, num_contexts: int, *, is_narrow: bool) -> DecodeSizes:
    """Sizes for heads of this padded width over a cache of kv_bytes a number.

    Args:
        padded_width: of a head.
        kv_bytes: of a number.
        num_contexts: rows times KV heads.
        is_narrow: a row's tokens and the heads that share a KV head come to a tile of 16 rows at most.
    """
    key = max(padded_width, _NARROW), kv_bytes
    for most, sizes in _DECODE_NARROW.get(key, ()) if is_narrow else ():
        if num_contexts <= most:
            return sizes
    return _DECODE.get(key, _WIDE_DECODE)


def prompt_sizes(padded_width: int, kv_bytes: int) -> PromptSizes:
    """Sizes for heads of this padded width over a cache of kv_bytes a number."""
    return _PROMPT.get((max(padded_width, _NARROW), kv_bytes), _WIDE_PROMPT)


def mixed_sizes(padded_width: int, kv_bytes: int) -> tuple[DecodeSizes, PromptSizes]:
    """Sizes for rows of few tokens and for prompts beside them."""
    return _MIXED.get((max(padded_width, _NARROW), kv_bytes), (_WIDE_DECODE, _WIDE_PROMPT))


def product_sizes(num_outputs: int, num_inputs: int, num_tokens: int, *, is_gated: bool) -> ProductSizes:
    """Sizes for so many of a few tokens and a weight of [num_outputs, num_inputs] in 16 bits.

    Tokens choose no number of pieces, so that they have no say in a sum. `kernels_products` measures sizes again.
    """
    has_one_tile = num_tokens <= _ONE_TILE
    if not is_gated and num_outputs <= _FEW_OUTPUTS and num_inputs >= _SHORT:  # too few programs to wait for each other
        return ProductSizes(16, 128, 4, 4 if has_one_tile else 3, num_pieces=4)
    if num_inputs < _SHORT:
        return ProductSizes(32, 64, 2, 6) if is_gated else ProductSizes(16, 128, 1, 5)
    if is_gated:
        return ProductSizes(32, 128, 2, 6 if num_inputs <= _SHORT and has_one_tile else 4)
    if num_outputs >= _VOCABULARY:
        return ProductSizes(32, 256, 4, 3)
    if has_one_tile:
        return ProductSizes(16, 256, 1, 6 if num_outputs <= _WIDE else 4)
    is_wider = num_outputs >= _WIDE and (num_inputs >= _LONG) == (num_tokens > 2 * _ONE_TILE)
    return ProductSizes(32 if is_wider else 16, 256, 2, 4)
