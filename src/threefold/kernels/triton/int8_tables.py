"""How products with int8 tables are cut on one H200: data, no code to speak of.

`python -m threefold.bench.kernels_int8` measures them again.
"""

from __future__ import annotations

from threefold.kernels.triton.fp8_tables import FewSizes, TileSizes, fp8_few_sizes

MAX_FEW_TOKENS_INT8 = 8
"""Up to here warps divide the inputs; beyond it tokens fill a tile."""

_MANY = (  # (most tokens, sizes), in order
    (16, TileSizes(16, 64, 128, 4, 6)),
    (32, TileSizes(32, 128, 128, 8, 5)),
    (64, TileSizes(64, 128, 128, 8, 4)),
    (128, TileSizes(128, 128, 128, 8, 3)),
    (1 << 62, TileSizes(256, 128, 64, 8, 4)),
)


def int8_few_sizes(num_rows: int) -> FewSizes:
    """Sizes for at most MAX_FEW_TOKENS_INT8 tokens: one cut, so that a sum is made in one order."""
    return fp8_few_sizes(1, num_rows, None)


def int8_sizes(num_tokens: int) -> TileSizes:
    """Sizes for more."""
    return next(sizes for most, sizes in _MANY if num_tokens <= most)
