"""Cuts of FP8 products that `bench.kernels_fp8 --sweep` tries: data; so few that a model takes less than a minute."""

from __future__ import annotations

from threefold.kernels.triton.fp8_tables import FewSizes, TileSizes

FEW_SWEEP = {  # most tokens -> cuts
    8: tuple(FewSizes(8, *cut) for cut in (
        (16, 128, 4, 3), (16, 128, 4, 4), (16, 128, 4, 5), (16, 128, 8, 3), (16, 128, 2, 4), (16, 128, 2, 6),
        (16, 256, 4, 3), (32, 128, 2, 4), (32, 128, 4, 4), (32, 256, 1, 4), (32, 256, 2, 3), (32, 256, 4, 3),
    )),
    16: tuple(FewSizes(16, *cut) for cut in ((16, 128, 4, 4), (32, 128, 4, 3), (64, 128, 4, 3))),
}  # fmt: skip
TILE_SWEEP = {  # most tokens -> cuts, tried whole and in splits that fill the card
    16: tuple(TileSizes(16, *cut) for cut in ((64, 128, 4, 6), (64, 128, 4, 8), (64, 256, 4, 4))),
    32: tuple(TileSizes(32, *cut) for cut in ((64, 128, 4, 8), (64, 256, 4, 4), (64, 512, 4, 3), (128, 128, 8, 6))),
    64: tuple(TileSizes(64, *cut) for cut in ((64, 128, 4, 6), (64, 256, 4, 4), (128, 128, 8, 6), (128, 256, 8, 3))),
}
PROGRAMS = 264
"""Two a multiprocessor: splits are added up to about so many."""
MOST_SPLITS = 8


def split_cuts(sizes: TileSizes, num_rows: int, num_inputs: int, num_tokens: int) -> list[TileSizes]:
    """The cut whole, and divided so that about one program or two run on each multiprocessor."""
    tiles = -(-num_rows // sizes.block_rows) * -(-num_tokens // sizes.block_tokens)
    most = max(1, min(MOST_SPLITS, num_inputs // sizes.block_inputs))
    splits = {min(most, max(1, round(programs / tiles))) for programs in (PROGRAMS // 2, PROGRAMS)}
    return [sizes._replace(num_splits=num) for num in sorted({1, *splits})]
