"""Products with packed 4-bit weights, through Triton's interpreter, against float32."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from threefold.kernels.activation import silu_mul_reference
from threefold.kernels.int4 import Int4Weight, dequantize, int4_product_reference, pack
from threefold.kernels.triton import int4, int4_dequantize, int4_few
from threefold.kernels.triton.int4 import tiled_body
from threefold.kernels.triton.int4_dequantize import dequantize_piece, dequantizing_body
from threefold.kernels.triton.int4_results import add_splits
from threefold.kernels.triton.int4_tables import MAX_FEW_TOKENS, FewSizes, Int4Sizes, int4_sizes
from threefold.kernels.triton.int4_wide_tables import (
    MAX_WIDE_TOKENS,
    MIN_WIDE_TOKENS,
    NUM_MULTIPROCESSORS,
    WideSizes,
    likely_wide,
)


@triton.jit
def _plain_spread(units, PLACE: tl.constexpr, dtype: tl.constexpr):
    """What the assembly does, in words that the interpreter knows; float16's offset."""
    return (((units >> (4 * PLACE)) & 15) | 0x6400).to(dtype, bitcast=True)


@triton.jit
def _as_it_is(acc):
    return acc


@pytest.fixture(autouse=True)
def _no_assembly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int4, "spread", _plain_spread)
    monkeypatch.setattr(int4, "settled", _as_it_is)
    monkeypatch.setattr(int4_few, "spread", _plain_spread)
    monkeypatch.setattr(int4_dequantize, "spread", _plain_spread)


def random_weight(num_outputs: int, num_inputs: int, group_size: int) -> Int4Weight:
    torch.manual_seed(num_outputs + num_inputs)
    groups = num_inputs // group_size
    return Int4Weight(
        torch.randint(0, 16, (num_outputs, num_inputs), dtype=torch.uint8),
        (torch.rand(num_outputs, groups) + 0.5).half() / 16,
        torch.randint(0, 17, (num_outputs, groups), dtype=torch.uint8),
        group_size,
    )


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("num_tokens", "num_outputs", "num_inputs", "group_size", "sizes"),
    [
        (1, 32, 512, 128, Int4Sizes(8, 16, 64, 1, 3)),  # whole wide chunks
        (5, 40, 256, 64, Int4Sizes(8, 32, 32, 1, 3)),  # half chunks, outputs that fill no tile
        (17, 32, 160, 32, Int4Sizes(16, 16, 64, 1, 3)),  # narrow chunks, the last one short, two tiles of tokens
        (3, 32, 768, 768, Int4Sizes(8, 16, 64, 1, 3)),  # one group an output
        (3, 32, 192, 96, Int4Sizes(8, 16, 64, 1, 3)),  # groups that begin within chunks
        (9, 40, 768, 128, Int4Sizes(8, 16, 64, 1, 3, num_splits=2)),  # splits of unequal length
        (2, 40, 512, 128, Int4Sizes(8, 32, 32, 1, 3, num_splits=3)),
        (1, 32, 512, 128, FewSizes(8, 16, 2, 3)),
        (5, 40, 768, 64, FewSizes(8, 16, 2, 3)),  # parts of unequal length, outputs that fill no tile
        (17, 32, 160, 32, FewSizes(16, 32, 4, 3)),  # fewer chunks than parts, the last one short
        (3, 32, 768, 768, FewSizes(8, 16, 1, 3)),
        (3, 32, 192, 96, FewSizes(8, 16, 2, 3)),
        (9, 40, 1280, 128, FewSizes(16, 16, 2, 3, num_splits=2)),
    ],
)
def test_tiles(
    num_tokens: int, num_outputs: int, num_inputs: int, group_size: int, sizes: FewSizes | Int4Sizes,
    has_bias: bool, is_gated: bool,
) -> None:  # fmt: skip
    weight = random_weight(num_outputs, num_inputs, group_size)
    x = torch.randn(num_tokens, num_inputs).half()
    bias = torch.randn(num_outputs).half() if has_bias else None

    got = tiled_body(pack(weight, torch.float16), bias, is_gated=is_gated)(x, sizes)

    right = int4_product_reference(x, weight, bias, is_gated=is_gated)
    assert got.shape == right.shape
    assert (got.float() - right).norm() <= 2e-3 * right.norm()


@pytest.mark.parametrize(("num_outputs", "num_inputs", "group_size"), [(40, 512, 128), (24, 160, 32), (16, 96, 96)])
def test_pieces_are_the_weight(num_outputs: int, num_inputs: int, group_size: int) -> None:
    weight = random_weight(num_outputs, num_inputs, group_size)
    piece = torch.full((num_outputs - 8, num_inputs), float("nan"), dtype=torch.float16)

    dequantize_piece(pack(weight, torch.float16), 8, piece)

    torch.testing.assert_close(piece.float(), dequantize(weight)[8:], rtol=1e-3, atol=0)


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_many_tokens_in_pieces(has_bias: bool, is_gated: bool) -> None:
    weight = random_weight(600, 128, 32)  # pieces of 256 outputs, the last one short
    x = torch.randn(3, 128).half()
    bias = torch.randn(600).half() if has_bias else None

    got = dequantizing_body(pack(weight, torch.float16), bias, is_gated=is_gated, piece_bytes=1)(x)

    right = int4_product_reference(x, weight, bias, is_gated=is_gated)
    assert got.shape == right.shape
    assert (got.float() - right).norm() <= 2e-3 * right.norm()


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_tokens", [5, 33])
def test_splits_of_the_last_outputs_are_added_and_the_first_ones_left_alone(
    num_tokens: int, has_bias: bool, is_gated: bool
) -> None:
    num_outputs, first = 600, 256
    parts = torch.randn(3, num_tokens, (num_outputs - first) * (2 if is_gated else 1))
    bias = torch.randn(num_outputs * (2 if is_gated else 1)).half()
    out = torch.full((num_tokens, num_outputs), 7.0).half()

    add_splits(parts, bias, out, {"NUM_OUTPUTS": num_outputs, "HAS_BIAS": has_bias, "IS_GATED": is_gated})

    sums = parts.sum(0).view(num_tokens, -1, num_outputs - first)
    if has_bias:
        sums += bias.float().view(-1, num_outputs)[:, first:]
    right = silu_mul_reference(sums.flatten(1)) if is_gated else sums[:, 0]
    assert (out[:, :first] == 7.0).all()
    torch.testing.assert_close(out[:, first:].float(), right, rtol=4e-3, atol=4e-3)


def test_sizes_fill_the_card_and_end_where_dequantising_pays() -> None:
    few, some, many = (int4_sizes(num, 4096, 48, is_gated=False, can_be_wide=False) for num in (1, 256, 8192))

    assert isinstance(few, FewSizes) and few.block_tokens == 8
    assert isinstance(some, Int4Sizes)
    programs = -(-4096 // some.block_rows) * -(-256 // some.block_tokens)
    assert some.num_splits > 1 and programs * some.num_splits <= NUM_MULTIPROCESSORS
    assert many is None


def test_wide_tiles_between_few_tokens_and_many() -> None:
    sizes = [
        int4_sizes(num, 24576, 16, is_gated=True, can_be_wide=True)
        for num in (1, MIN_WIDE_TOKENS, MAX_WIDE_TOKENS, 8192)
    ]

    assert [type(each) for each in sizes] == [FewSizes, WideSizes, WideSizes, type(None)]


def test_a_weight_whose_wide_tiles_leave_much_of_the_card_idle_is_dequantised_first_for_many_tokens() -> None:
    """192 tiles of 256 rows and 128 tokens take 132 multiprocessors two rounds, the second of which is half empty."""
    assert isinstance(int4_sizes(256, 6144, 16, is_gated=False, can_be_wide=True), WideSizes)
    assert int4_sizes(1024, 6144, 16, is_gated=False, can_be_wide=True) is None


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("num_rows", [104, 4096, 24576])
@pytest.mark.parametrize("num_chunks", [1, 5, 16, 48])
@pytest.mark.parametrize("num_tokens", [33, 256, 1024])
def test_every_wide_cut_gives_every_program_something(
    num_tokens: int, num_chunks: int, num_rows: int, is_gated: bool
) -> None:
    for cut in likely_wide(num_tokens, num_rows, num_chunks, is_gated=is_gated):
        num_whole, num_split = cut.num_tiles(num_tokens, num_rows)
        share = -(-num_chunks // cut.num_splits)
        assert (cut.num_splits - 1) * share < num_chunks
        assert (cut.num_splits > 1) == (num_split > 0)
        assert num_whole + num_split == -(-num_rows // cut.block_rows) * -(-num_tokens // cut.block_tokens)
        assert not (is_gated and cut.block_rows < 256)


def test_wide_programs_are_busy_for_about_the_same_time() -> None:
    """192 tiles on 132 multiprocessors: as many whole ones, the others in halves."""
    assert likely_wide(256, 24576, 16, is_gated=True)[0] == WideSizes(128, 256, 66, 2)


@pytest.mark.parametrize("num_rows", [512, 4096, 12288])
def test_few_tokens_are_summed_in_one_order(num_rows: int) -> None:
    cuts = [int4_sizes(num, num_rows, 48, is_gated=False, can_be_wide=True) for num in range(1, MAX_FEW_TOKENS + 1)]

    assert all(isinstance(cut, FewSizes) for cut in cuts)
    assert len({(cut.num_parts, cut.num_splits) for cut in cuts if isinstance(cut, FewSizes)}) == 1
