"""Bodies for int8 tables through Triton's interpreter, against the contract in torch."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.int8 import Int8Table, int8_reference, lookup_reference, quantise_rows
from threefold.kernels.triton.fp8_tables import TileSizes
from threefold.kernels.triton.int8 import int8_body, tile_int8_body
from threefold.kernels.triton.int8_lookup import lookup_body
from threefold.kernels.triton.int8_tables import MAX_FEW_TOKENS_INT8, int8_sizes


def table(num_rows: int, width: int) -> Int8Table:
    torch.manual_seed(num_rows)
    return quantise_rows(torch.randn(num_rows, width))


def relative(got: torch.Tensor, right: torch.Tensor) -> float:
    return ((got.float() - right.float()).norm() / right.float().norm()).item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("width", [64, 576, 2060])
def test_lookup(width: int, dtype: torch.dtype) -> None:
    rows = table(20, width)
    ids = torch.tensor([19, 0, 7, 7, 1])
    assert torch.equal(lookup_body(rows, dtype)(ids), lookup_reference(rows, ids, dtype))
    assert lookup_body(rows, dtype)(ids[:0]).shape == (0, width)


def test_every_number_of_int8_is_widened_exactly() -> None:
    values = torch.arange(-128, 128, dtype=torch.int8).view(16, 16)
    plain = Int8Table(values, torch.ones(16))
    for num_tokens in (1, 16):
        x = torch.eye(16)[:num_tokens].bfloat16()
        assert torch.equal(int8_body(plain)(x).float(), values.float().T[:num_tokens])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("num_rows", "width"), [(64, 128), (50, 72)])  # even; rows and inputs that fill no tile
@pytest.mark.parametrize("num_tokens", [1, MAX_FEW_TOKENS_INT8, MAX_FEW_TOKENS_INT8 + 1, 40])
def test_product(num_tokens: int, num_rows: int, width: int, dtype: torch.dtype) -> None:
    rows = table(num_rows, width)
    x = torch.randn(num_tokens, width).to(dtype)
    got, right = int8_body(rows)(x), int8_reference(x, rows)
    assert got.shape == right.shape and got.dtype == dtype
    assert relative(got, right) < (1e-6 if dtype == torch.float32 else 4e-3)


@pytest.mark.parametrize("num_tokens", [3, 21])
def test_tiles_of_any_size_give_the_same(num_tokens: int) -> None:
    rows, x = table(70, 96), torch.randn(num_tokens, 96)
    body = tile_int8_body(rows)
    for sizes in (TileSizes(16, 16, 32, 4, 2), TileSizes(32, 64, 64, 4, 2)):
        torch.testing.assert_close(body(x, sizes), int8_reference(x, rows), rtol=1e-5, atol=1e-4)


def test_nobody_to_multiply() -> None:
    assert int8_body(table(16, 32))(torch.zeros(0, 32)).shape == (0, 16)


def test_sizes_serve_any_number() -> None:
    assert [int8_sizes(num).block_tokens for num in (9, 16, 17, 64, 5000)] == sorted(
        int8_sizes(num).block_tokens for num in (9, 16, 17, 64, 5000)
    )
