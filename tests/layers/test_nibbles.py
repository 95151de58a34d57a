"""Four-bit numbers out of words."""

from __future__ import annotations

import torch

from threefold.layers.nibbles import AWQ_ORDER, unpack


def test_the_lowest_bits_come_first_and_the_highest_are_no_sign() -> None:
    words = torch.tensor([[0x76543210], [0xF0000008 - (1 << 32)]], dtype=torch.int32)

    assert unpack(words, -1).tolist() == [[0, 1, 2, 3, 4, 5, 6, 7], [8, 0, 0, 0, 0, 0, 0, 15]]


def test_words_along_the_first_dimension() -> None:
    words = torch.tensor([[0x76543210, 0x11111111]], dtype=torch.int32)

    numbers = unpack(words, 0)

    assert numbers.shape == (8, 2)
    assert numbers[:, 0].tolist() == list(range(8))


def test_awq_packs_even_numbers_first() -> None:
    words = torch.tensor([0x75316420], dtype=torch.int32)

    assert unpack(words, -1, AWQ_ORDER).tolist() == list(range(8))
