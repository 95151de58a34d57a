"""FP8 weights (e4m3), as checkpoints store them or quantised while they are loaded.

Scales are by output, by block of outputs and inputs, or one a part, which becomes one for each of its outputs where
parts are fused. Knows nothing about checkpoints' words; the product is kernels/fp8.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from threefold.kernels.fp8 import (
    E4M3,
    Fp8Inputs,
    Fp8Weight,
    fp8_product,
    keeps_fp8,
    quantise_outputs,
)
from threefold.kernels.linear import Product
from threefold.layers.quant import StoredTensor

_WEIGHT = StoredTensor(E4M3, out_dim=0, in_dim=1)
_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class StoredFp8:
    """Weights and scales as a checkpoint has them."""

    scale_name: str
    strategy: str
    block_size: tuple[int, int] = (0, 0)
    has_input_scales: bool = False
    input_bound: float | None = None

    @property
    def name(self) -> str:
        """As a user writes it."""
        return "fp8"

    @property
    def stored(self) -> Mapping[str, StoredTensor]:
        """The weight, its scales, and a scale of the input where it is fixed."""
        tensors = {"weight": _WEIGHT, self.scale_name: self._scale}
        if self.has_input_scales:
            tensors["input_scale"] = StoredTensor(torch.float32, out_dim=None, in_dim=None, dummy=1.0)
        return tensors

    @property
    def _scale(self) -> StoredTensor:
        if self.strategy == "block":
            each, inputs_each = self.block_size
            return StoredTensor(torch.float32, 0, 1, outputs_each=each, inputs_each=inputs_each, dummy=1.0)
        return StoredTensor(torch.float32, 0, None, is_one_a_part=self.strategy == "tensor", dummy=1.0)

    def product(
        self, tensors: Mapping[str, torch.Tensor], bias: torch.Tensor | None, *, is_gated: bool, dtype: torch.dtype
    ) -> Product:
        """kernels/fp8.py's. Parts with fixed input scales share the largest: they read the same input."""
        block_size = self.block_size if self.strategy == "block" else None
        fixed = tensors["input_scale"].max() if self.has_input_scales else None
        weight = Fp8Weight(tensors["weight"], tensors[self.scale_name], block_size)
        return fp8_product(weight, bias, is_gated=is_gated, dtype=dtype, inputs=Fp8Inputs(fixed, self.input_bound))

    def kept_bytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
        """A byte a weight and the scales."""
        if not keeps_fp8(dtype, device):
            return outputs * inputs * dtype.itemsize
        by_block, blocks = self.strategy == "block", self._scale.shape(outputs, inputs)
        return outputs * inputs + _SCALE_BYTES * (blocks[0] * blocks[1] if by_block else outputs)


@dataclass(frozen=True, slots=True)
class Fp8WhileLoading:
    """A plain weight that gets a scale an output once all parts have come; the plain one is then gone."""

    @property
    def name(self) -> str:
        """As a user writes it."""
        return "fp8"

    @property
    def stored(self) -> Mapping[str, StoredTensor]:
        """As without a scheme."""
        return {"weight": StoredTensor(None, out_dim=0, in_dim=1)}

    def product(
        self, tensors: Mapping[str, torch.Tensor], bias: torch.Tensor | None, *, is_gated: bool, dtype: torch.dtype
    ) -> Product:
        """kernels/fp8.py's."""
        return fp8_product(quantise_outputs(tensors["weight"]), bias, is_gated=is_gated, dtype=dtype)

    def kept_bytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
        """A byte a weight and a scale an output."""
        if not keeps_fp8(dtype, device):
            return outputs * inputs * dtype.itemsize
        return outputs * inputs + _SCALE_BYTES * outputs
