"""Tables in eight bits: what is kept of a plain one, and how much memory that is."""

from __future__ import annotations

import gc
import weakref

import torch

from threefold.kernels.int8 import quantise_rows
from threefold.layers.int8 import Int8WhileLoading

CPU, CARD = torch.device("cpu"), torch.device("cuda")


def test_rows_and_product_are_of_one_table() -> None:
    torch.manual_seed(0)
    plain, hidden = torch.randn(40, 16), torch.randn(3, 16)
    table = Int8WhileLoading().table({"weight": plain}, torch.float32)
    rounded = quantise_rows(plain).dequantised(torch.float32)
    assert torch.equal(table.rows(torch.arange(40)), rounded)
    torch.testing.assert_close(table.product()(hidden), hidden @ rounded.T)


def test_the_plain_table_is_let_go() -> None:
    plain = torch.randn(40, 16)
    alive = weakref.ref(plain)
    table = Int8WhileLoading().table({"weight": plain}, torch.bfloat16)
    multiply = table.product()
    del plain
    gc.collect()
    assert alive() is None
    assert multiply(torch.randn(2, 16).bfloat16()).shape == (2, 40)


def test_kept_bytes() -> None:
    scheme, table = Int8WhileLoading(), quantise_rows(torch.randn(40, 16))
    assert scheme.kept_bytes(40, 16, torch.bfloat16, CARD) == sum(part.nbytes for part in table)
    assert scheme.kept_bytes(40, 16, torch.float32, CARD) == 40 * 16 * 4
    assert scheme.kept_bytes(40, 16, torch.bfloat16, CPU) == 40 * 16 * 2
