"""The vector blocks alone: powers of two, and bf16 with the processor's instructions and without."""

from __future__ import annotations

import math

import pytest
import torch

from threefold.kernels.native import llvm, vector
from threefold.kernels.native.product import product_tile
from threefold.kernels.native.team import Run, fingerprint
from threefold.kernels.native.vector import peek_i64

BF16_WAYS = [True, False]


def set_way(monkeypatch: pytest.MonkeyPatch, is_by_instruction: bool) -> None:
    if is_by_instruction and not llvm.has_feature("avx512bf16"):
        pytest.skip("this processor has no bf16 instructions")
    monkeypatch.setattr(llvm, "has_feature", lambda name: is_by_instruction)


def exp2_body() -> Run:
    source = fingerprint()

    def body(args: int) -> None:
        _ = source
        vector.store(peek_i64(args + 24), vector.exp2(vector.load(peek_i64(args + 16), 4)), 4)

    return Run(body, 2)


def narrow_body(way: int) -> Run:
    source = fingerprint() + way  # a body of its own in numba's cache

    def body(args: int) -> None:
        _ = source
        vector.store(peek_i64(args + 24), vector.load(peek_i64(args + 16), 4), 2)

    return Run(body, 2)


def tile_body(way: int) -> Run:
    source = fingerprint() + way

    def body(args: int) -> None:
        _ = source
        product_tile(peek_i64(args + 16), 0, peek_i64(args + 24), 16, peek_i64(args + 32), peek_i64(args + 40), 0, 1)

    return Run(body, 4)


def exp2(numbers: torch.Tensor) -> torch.Tensor:
    out = torch.empty(16)
    exp2_body()(1, numbers.data_ptr(), out.data_ptr())
    return out


def test_exp2() -> None:
    numbers = torch.linspace(-120.0, 120.0, 16)

    torch.testing.assert_close(exp2(numbers), torch.exp2(numbers), rtol=3e-6, atol=0.0)


def test_exp2_at_the_ends() -> None:
    numbers = torch.tensor([0.0, -1e30, -127.0, 1e30, -math.inf, math.inf, math.nan, 1.0] + [0.0] * 8)

    got = exp2(numbers)

    assert [1.0, 0.0, 0.0, 2.0**127, 0.0, 2.0**127] == got[:6].tolist()
    assert bool(got[6].isnan())


@pytest.mark.parametrize("is_by_instruction", BF16_WAYS)
def test_rounding_to_bf16_is_torchs(monkeypatch: pytest.MonkeyPatch, is_by_instruction: bool) -> None:
    set_way(monkeypatch, is_by_instruction)
    one, step = 1.0, 2.0**-8  # 1 + step lies halfway between two bf16, the lower of which is even
    numbers = torch.tensor([one, one + step, one + 3 * step, one + 1.01 * step, -one - step, 1e30, 0.0, math.inf] * 2)
    out = torch.empty(16, dtype=torch.bfloat16)

    narrow_body(1 + is_by_instruction)(1, numbers.data_ptr(), out.data_ptr())

    assert torch.equal(numbers.bfloat16(), out)


@pytest.mark.parametrize("is_by_instruction", BF16_WAYS)
def test_products_of_pairs(monkeypatch: pytest.MonkeyPatch, is_by_instruction: bool) -> None:
    set_way(monkeypatch, is_by_instruction)
    torch.manual_seed(0)
    x, weight, bias = torch.randn(32).bfloat16(), torch.randn(64, 32).bfloat16(), torch.randn(64).bfloat16()
    packed = weight.view(64, 16, 2).permute(1, 0, 2).contiguous()  # [in / 2, 64, 2]
    out = torch.empty(64, dtype=torch.bfloat16)

    tile_body(1 + is_by_instruction)(1, x.data_ptr(), packed.data_ptr(), bias.data_ptr(), out.data_ptr())

    torch.testing.assert_close(out.float(), weight.float() @ x.float() + bias.float(), rtol=1e-2, atol=1e-2)
