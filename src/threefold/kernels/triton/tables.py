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
    """Inputs a step of the loop takes."""
    num_warps: int
    num_stages: int


class ManySizes(NamedTuple):
    """How a product of many tokens is cut: bound by the tensor cores."""

    block_m: int
    """Tokens of a program."""
    block_n: int
    """Outputs of a program."""
    block_k: int
    """Inputs a step of the loop takes."""
    num_warps: int
    num_stages: int
    group_m: int = 8
    """Neighbouring programs go through so many tiles of tokens before the next outputs."""


_DECODE = {  # (padded head width, bytes of a number of the cache)
    (64, 1): DecodeSizes(64, 4, 4, 1056),
    (64, 2): DecodeSizes(64, 4, 4, 1056),
    (128, 1): DecodeSizes(64, 4, 4, 1056),
    (128, 2): DecodeSizes(64, 4, 3, 528),
}
_PROMPT = {
    (64, 1): PromptSizes(128, 64, 8, 3),
    (64, 2): PromptSizes(128, 64, 8, 3),
    (128, 1): PromptSizes(128, 64, 8, 3),
    (128, 2): PromptSizes(64, 64, 4, 2),
}
_WIDE_DECODE = DecodeSizes(32, 4, 2, 1056)  # wide heads and float32: what fits into shared memory
_WIDE_PROMPT = PromptSizes(64, 32, 4, 2)
_NARROW = 64
_SHORT = 1024
_VOCABULARY = 32768
_LONG = 8192
_WIDE = 4096
_ONE_TILE = 16

MAX_ONE_TILE_FP8 = 64
"""Tokens that the smallest tile of FP8 with FP8 takes at once."""


def decode_sizes(padded_width: int, kv_bytes: int) -> DecodeSizes:
    """Sizes for heads of this padded width over a cache of kv_bytes a number."""
    return _DECODE.get((max(padded_width, _NARROW), kv_bytes), _WIDE_DECODE)


def prompt_sizes(padded_width: int, kv_bytes: int) -> PromptSizes:
    """Sizes for heads of this padded width over a cache of kv_bytes a number."""
    return _PROMPT.get((max(padded_width, _NARROW), kv_bytes), _WIDE_PROMPT)


def product_sizes(num_outputs: int, num_inputs: int, *, is_gated: bool) -> ProductSizes:
    """Sizes for a weight of [num_outputs, num_inputs] in 16 bits; `kernels_products` measures them again."""
    if is_gated:
        return ProductSizes(32, 64, 4, 6) if num_inputs < _SHORT else ProductSizes(32, 128, 4, 4)
    if num_outputs >= _VOCABULARY:
        return ProductSizes(32, 256, 4, 3)
    return ProductSizes(16, 128, 4, 4) if num_inputs < _SHORT else ProductSizes(16, 256, 2, 4)


def fp8_product_sizes(num_outputs: int, num_inputs: int, *, is_gated: bool, num_tokens: int) -> ProductSizes:
    """Sizes for so many of a few tokens with a weight of bytes; `bench.kernels_fp8` measures them again."""
    if num_inputs < _SHORT:
        return ProductSizes(16, 128, 2, 5)
    if num_outputs >= _VOCABULARY:
        return ProductSizes(64, 256, 4, 3)
    if is_gated:
        return ProductSizes(32, 256, 4, 4)
    # x takes as much shared memory as the weight, and with more tokens the room for steps under way.
    if num_tokens > _ONE_TILE:
        return ProductSizes(16, 256, 2, 5)
    if num_outputs < _WIDE:  # not measured; wider programs would be too few
        return ProductSizes(16, 512, 2, 4)
    return ProductSizes(32, 128, 4, 6) if num_inputs >= _LONG else ProductSizes(32, 512, 4, 3)


def fp8_block_sizes(block_inputs: int, *, is_gated: bool) -> ProductSizes:
    """The same where scales are by block: a step stays in one block."""
    return ProductSizes(32, power_within(block_inputs, 128), 4, 6 if is_gated else 5)


def fp8_many_sizes(num_tokens: int, block_inputs: int | None) -> ManySizes:
    """Sizes for many tokens, FP8 with FP8. By block four warps have no room for tiles of 128 by 128."""
    block_k = 128 if block_inputs is None else power_within(block_inputs, 128)
    if num_tokens <= MAX_ONE_TILE_FP8:
        return ManySizes(64, 64, block_k, 4, 4)
    return ManySizes(64, 128, block_k, 4, 4) if num_tokens <= 512 else ManySizes(128, 128, block_k, 8, 3)


def power_within(number: int, most: int) -> int:
    """The largest power of two that divides a number, up to `most`."""
    return min(number & -number, most)
