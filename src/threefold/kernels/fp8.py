"""Products with FP8 weights (e4m3).

Contract: y = x · (values · scales)ᵀ + bias, gated as in kernels/linear.py. Scales are by output, or by block of outputs
and inputs. Many tokens on a card are multiplied as FP8 too: x is rounded to e4m3 with a scale a token (or the fixed
one), `quantise_tokens`. A few tokens, and every token on a CPU, are multiplied as they are: fewer roundings, so the
bodies differ by what rounding x costs, at most 1/16 of each of its numbers, and by no more.

On a CPU, which has no FP8 products, weights become the model's type again when they are loaded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch

from threefold.kernels.activation import silu_mul_reference
from threefold.kernels.bodies import is_triton
from threefold.kernels.linear import Product, product

E4M3 = torch.float8_e4m3fn
MAX_E4M3 = 448.0
"""Largest number that e4m3 has."""
MAX_FEW_TOKENS_FP8 = 8
"""Up to here the body that leaves x alone is the faster one on an H200 (`python -m threefold.bench.kernels_fp8`)."""
_LEAST_SCALE = 1e-12
_ROWS_AT_ONCE = 4096


class Fp8Weight(NamedTuple):
    """A weight and its scales."""

    values: torch.Tensor
    """[out, in] e4m3."""
    scales: torch.Tensor
    """[out] float32, or [blocks of outputs, blocks of inputs]."""
    block_size: tuple[int, int] | None = None
    """Outputs and inputs a block; None = a scale an output."""

    def dequantised(self, dtype: torch.dtype) -> torch.Tensor:
        """[out, in] in another type."""
        out = torch.empty(self.values.shape, dtype=dtype, device=self.values.device)
        for start in range(0, len(out), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            out[rows] = self.values[rows].float() * self._scales_of(start, len(out[rows]))
        return out

    def _scales_of(self, start: int, num: int) -> torch.Tensor:
        """Scales of some outputs, to be broadcast over their inputs."""
        if self.block_size is None:
            return self.scales[start : start + num, None]
        rows = torch.arange(start, start + num, device=self.scales.device) // self.block_size[0]
        wide = self.scales[rows].repeat_interleave(self.block_size[1], dim=1)
        return wide[:, : self.values.shape[1]]


class Fp8Inputs(NamedTuple):
    """How x becomes FP8 where it does."""

    fixed_scale: torch.Tensor | None = None
    """[] float32, for all tokens; None = a scale a token, as it comes."""
    bound: float | None = None
    """A token's largest number is taken to be no larger than this."""


class Rounded(NamedTuple):
    """Activations in FP8: x ≈ values · scales."""

    values: torch.Tensor
    """[num_tokens, width] e4m3."""
    scales: torch.Tensor
    """[num_tokens] float32."""


class Rounding(NamedTuple):
    """That a product takes its input rounded, so that the op before it may round what it has in hand."""

    more_than: int
    """Tokens from which on."""
    inputs: Fp8Inputs


Activations = torch.Tensor | Rounded
RoundedNorm = Callable[[torch.Tensor, torch.Tensor | None], Rounded]


class RoundingProduct(ABC):
    """A product that may take its input rounded and hand its result on so; plain tensors go in and come out too."""

    rounding: Rounding | None
    """Of its input; None = it takes plain tensors alone."""

    @abstractmethod
    def __call__(self, x: Activations) -> torch.Tensor:
        """The product."""

    @abstractmethod
    def round_result(self, rounding: Rounding) -> None:
        """What the next product takes, for `handed_on`."""

    @abstractmethod
    def handed_on(self, x: Activations) -> Activations:
        """The product, rounded where both serve so many tokens as FP8."""


def quantise_outputs(weight: torch.Tensor) -> Fp8Weight:
    """A plain weight [out, in] with a scale an output, whose largest number becomes the largest that e4m3 has."""
    values = torch.empty(weight.shape, dtype=E4M3, device=weight.device)
    scales = torch.empty(len(weight), dtype=torch.float32, device=weight.device)
    for start in range(0, len(weight), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        values[rows], scales[rows] = quantise_tokens_reference(weight[rows], Fp8Inputs())
    return Fp8Weight(values, scales)


def quantise_tokens_reference(x: torch.Tensor, inputs: Fp8Inputs) -> Rounded:
    """Rows in e4m3 and their scales: x ≈ values · scales.

    Args:
        x: [n, width].
        inputs: how.
    """
    wide = x.float()
    if inputs.fixed_scale is not None:
        scales = inputs.fixed_scale.float().expand(len(x))
    else:
        largest = wide.abs().amax(dim=1) if x.shape[1] else wide.new_zeros(len(x))
        scales = largest.clamp(max=inputs.bound or torch.inf).div(MAX_E4M3).clamp(min=_LEAST_SCALE)
    values = (wide / scales[:, None]).clamp(-MAX_E4M3, MAX_E4M3).to(E4M3)
    return Rounded(values, scales.contiguous())


def fp8_reference(
    x: torch.Tensor,
    weight: Fp8Weight,
    bias: torch.Tensor | None = None,
    *,
    is_gated: bool = False,
    inputs: Fp8Inputs | None = None,
) -> torch.Tensor:
    """The contract in torch, in float32; with `inputs`, x is rounded to e4m3 first.

    Args:
        x: [num_tokens, in].
        weight: quantised.
        bias: [out] or None.
        is_gated: as in kernels/linear.py.
        inputs: None = x as it is.
    """
    wide = x.float()
    if inputs is not None:
        values, scales = quantise_tokens_reference(x, inputs)
        wide = values.float() * scales[:, None]
    out = wide @ weight.dequantised(torch.float32).T
    if bias is not None:
        out = out + bias.float()
    return (silu_mul_reference(out) if is_gated else out).to(x.dtype)


def keeps_fp8(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether weights stay FP8 for activations of this type; else they become it when they are loaded."""
    return is_triton(device, dtype) and dtype != torch.float32


def fp8_product(
    weight: Fp8Weight,
    bias: torch.Tensor | None,
    *,
    is_gated: bool,
    dtype: torch.dtype,
    inputs: Fp8Inputs | None = None,
) -> Product:
    """The fastest body for this weight: a function of x [num_tokens, in]. Keep no reference to `weight`.

    Args:
        weight: quantised, on the device.
        bias: [out] or None.
        is_gated: the outputs are a gate and what it is multiplied with; half as many numbers come out.
        dtype: of x and the results.
        inputs: how x becomes FP8 where it does; None = a scale a token.
    """
    device = weight.values.device
    if not keeps_fp8(dtype, device):
        return product(weight.dequantised(dtype), bias, is_gated=is_gated)
    from threefold.kernels.triton.fp8_product import CardFp8Product

    return CardFp8Product(weight, bias, is_gated=is_gated, dtype=dtype, inputs=inputs or Fp8Inputs())


def norm_rounded(weight: torch.Tensor, eps: float, inputs: Fp8Inputs) -> RoundedNorm:
    """The RMS norm of kernels/norm.py with its result rounded on the way out; for cards alone."""
    from threefold.kernels.triton.fp8_rows import norm_rounded_body

    return norm_rounded_body(weight, eps, inputs)
