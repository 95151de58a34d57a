"""Weights of a GGUF file that stay packed in 4 or 8 bits on a CPU: products, and the table of an embedding.

Of a weight three tensors are stored: `numbers`, and for every 32 inputs `scales` and, where the packing has them,
`minima`; kernels/records.py says what they mean. Knows nothing about files: models/gguf_blocks.py takes a file's blocks
apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from threefold.errors import ModelLoadError
from threefold.kernels.linear import Product
from threefold.kernels.packed import has_packed_products, packed_product, packed_rows
from threefold.kernels.records import RECORD_INPUTS, RECORD_OUTPUTS, Form, PackedWeight, fits_records
from threefold.layers.quant import StoredTensor

__all__ = ["PACKINGS", "GgufScheme", "PackedTable", "common_packing", "fits_records", "has_packed_products"]

PACKINGS: Mapping[str, Form] = {
    "Q4_0": Form(bits=4, zero=8, has_minimum=False),
    "Q4_1": Form(bits=4, zero=0, has_minimum=True),
    "Q5_0": Form(bits=8, zero=16, has_minimum=False),
    "Q5_1": Form(bits=8, zero=0, has_minimum=True),
    "Q8_0": Form(bits=8, zero=128, has_minimum=False),
}
"""By ggml's names for its blocks; five bits are kept in eight."""
_FACTORS = StoredTensor(torch.float16, out_dim=0, in_dim=1, inputs_each=RECORD_INPUTS)


def common_packing(packings: Collection[str]) -> str:
    """What weights of several packings can all be kept in, each number as it is."""
    if len(set(packings)) == 1:
        return next(iter(packings))
    return "Q4_1" if all(PACKINGS[one].bits == 4 for one in packings) else "Q5_1"


@dataclass(frozen=True, slots=True)
class GgufScheme:
    """One weight's packing, a key of PACKINGS."""

    packing: str
    """Of its blocks."""

    @property
    def name(self) -> str:
        """As a user writes it."""
        return "gguf"

    @property
    def stored(self) -> Mapping[str, StoredTensor]:
        """Numbers, one a byte, and factors."""
        factors = ("scales", "minima") if PACKINGS[self.packing].has_minimum else ("scales",)
        return {"numbers": StoredTensor(torch.uint8, out_dim=0, in_dim=1), **dict.fromkeys(factors, _FACTORS)}

    def weight(self, tensors: Mapping[str, torch.Tensor]) -> PackedWeight:
        """Stored tensors in the order that products read.

        Raises:
            ModelLoadError: a rank's share is not whole records.
        """
        numbers = tensors["numbers"]
        if not fits_records(*numbers.shape):
            raise ModelLoadError(
                f"packed weights need multiples of {RECORD_OUTPUTS} outputs and {RECORD_INPUTS} inputs on each rank, "
                f"here are {numbers.shape[0]} and {numbers.shape[1]}; take fewer ranks"
            )
        return PackedWeight(PACKINGS[self.packing], numbers, tensors["scales"], tensors.get("minima"))

    def product(
        self, tensors: Mapping[str, torch.Tensor], bias: torch.Tensor | None, *, is_gated: bool, dtype: torch.dtype
    ) -> Product:
        """A product that reads packed weights."""
        return packed_product(self.weight(tensors), bias, is_gated=is_gated, dtype=dtype)

    def table(self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> PackedTable:
        """A table that stays packed."""
        return PackedTable(self.weight(tensors), dtype)

    def kept_bytes(
        self,
        outputs: int,
        inputs: int,
        dtype: torch.dtype,  # noqa: ARG002 (whatever products take and give)
        device: torch.device,  # noqa: ARG002
    ) -> int:
        """Records alone."""
        return outputs // RECORD_OUTPUTS * (inputs // RECORD_INPUTS) * PACKINGS[self.packing].record_bytes


class PackedTable:
    """A packed embedding: rows of it, and the product with all of it; both read the one copy.

    Args:
        weight: [vocabulary, hidden_size].
        dtype: of rows and of hidden states.
    """

    def __init__(self, weight: PackedWeight, dtype: torch.dtype) -> None:
        self._weight = weight
        self._dtype = dtype
        self._rows = packed_rows(weight, dtype)

    def rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens] int64 -> [num_tokens, hidden_size]."""
        return self._rows(token_ids)

    def product(self) -> Product:
        """Hidden states to float32 logits."""
        return packed_product(self._weight, None, dtype=self._dtype, out_dtype=torch.float32)
