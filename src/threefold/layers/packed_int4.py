"""Four-bit checkpoints of compressed-tensors, format pack-quantized, as llm-compressor writes them.

    weight_packed      [out, in / 8]      int32   eight inputs a word, each 8 more than the signed number
    weight_scale       [out, groups]
    weight_zero_point  [out / 8, groups]  int32   eight outputs a word, also 8 more; where weights are not symmetric
    weight_g_idx       [in]               int32   the group of each input; where actorder may have mixed them

Values and zeros are both 8 more, so that their difference is right. Knows nothing about checkpoints' words; the product
is kernels/int4.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from threefold.kernels.int4 import kept_bytes
from threefold.kernels.linear import Product
from threefold.layers.int4_groups import (
    MIDDLE,
    Int4Numbers,
    by_group,
    check_order,
    eight_times,
    grouped_product,
    middles,
    outputs_first,
)
from threefold.layers.nibbles import PER_WORD, unpack
from threefold.layers.quant import QuantScheme, StoredTensor


def packed_int4_scheme(numbers: Int4Numbers) -> QuantScheme:
    """The scheme of a pack-quantized checkpoint of four bits."""
    return PackedInt4Groups(numbers.group_size, numbers.has_zero_points, numbers.has_input_order)


@dataclass(frozen=True, slots=True)
class PackedInt4Groups:
    """One product as compressed-tensors stores it."""

    group_size: int
    """Inputs a group; 0 = all (strategy channel)."""
    has_zero_points: bool = False
    has_input_order: bool = False
    """weight_g_idx has to be looked at."""

    @property
    def name(self) -> str:
        """As a user writes it."""
        return "compressed-tensors"

    @property
    def stored(self) -> Mapping[str, StoredTensor]:
        """Values, scales, and what else there may be."""
        tensors = {
            "weight_packed": StoredTensor(torch.int32, out_dim=0, in_dim=1, inputs_each=PER_WORD),
            "weight_scale": by_group(self.group_size, None, is_groups_first=False),
        }
        if self.has_zero_points:
            tensors["weight_zero_point"] = by_group(
                self.group_size, torch.int32, is_groups_first=False, outputs_each=PER_WORD, dummy=eight_times(MIDDLE)
            )
        if self.has_input_order:
            tensors["weight_g_idx"] = StoredTensor(torch.int32, None, 0)
        return tensors

    def product(
        self, tensors: Mapping[str, torch.Tensor], bias: torch.Tensor | None, *, is_gated: bool, dtype: torch.dtype
    ) -> Product:
        """kernels/int4.py's."""
        if self.has_input_order:
            check_order(tensors["weight_g_idx"], self.group_size, "actorder")
        values = unpack(tensors["weight_packed"], -1)
        scales = outputs_first(tensors["weight_scale"], is_groups_first=False)
        zeros = middles(scales)
        if self.has_zero_points:
            zeros = outputs_first(unpack(tensors["weight_zero_point"], 0), is_groups_first=False)
        return grouped_product((values, scales, zeros), self.group_size, bias, is_gated=is_gated, dtype=dtype)

    def kept_bytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
        """As kernels/int4.py keeps them."""
        return kept_bytes(outputs, inputs, self.group_size or inputs, dtype, device)
