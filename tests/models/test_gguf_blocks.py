"""Blocks taken apart mean what the library says they mean, also in a packing that is not their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, quants
from gguf import GGMLQuantizationType as Kind

from threefold.layers.gguf import PACKINGS, GgufScheme
from threefold.models.gguf_blocks import Parts, block_bytes, take_apart


def packed_rows(kind: Kind) -> np.ndarray:
    values = np.random.default_rng(int(kind)).standard_normal((64, 96), np.float32)
    return quants.quantize(values, kind)


def weights_of(parts: Parts, packing: str) -> np.ndarray:
    tensors = {name: torch.from_numpy(part) for name, part in parts._asdict().items() if part is not None}
    return GgufScheme(packing).weight(tensors).rows(torch.arange(64)).numpy()


@pytest.mark.parametrize("packing", PACKINGS)
def test_parts_are_the_librarys_weights(packing: str) -> None:
    raw = packed_rows(Kind[packing])
    np.testing.assert_array_equal(weights_of(take_apart(raw, packing), packing), quants.dequantize(raw, Kind[packing]))


def test_the_lowest_number_of_eight_bits_is_read_too() -> None:
    raw = packed_rows(Kind.Q8_0)
    raw.reshape(64, 3, 34)[:, :, 2] = 0x80  # -128, which the library does not write
    np.testing.assert_array_equal(weights_of(take_apart(raw, "Q8_0"), "Q8_0"), quants.dequantize(raw, Kind.Q8_0))


@pytest.mark.parametrize(
    ("stored", "packing"), [("Q4_0", "Q4_1"), ("Q8_0", "Q5_1"), ("Q4_0", "Q5_1"), ("Q4_1", "Q5_1"), ("Q5_0", "Q5_1")]
)
def test_a_packing_for_several_changes_no_weight(stored: str, packing: str) -> None:
    raw = packed_rows(Kind[stored])
    parts = take_apart(raw, stored).as_packed_in(packing, stored)
    np.testing.assert_allclose(weights_of(parts, packing), quants.dequantize(raw, Kind[stored]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("packing", PACKINGS)
def test_sizes_are_ggmls(packing: str) -> None:
    assert GGML_QUANT_SIZES[Kind[packing]] == (32, block_bytes(packing))
