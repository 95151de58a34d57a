"""An FP8 product on a card: which body serves how many tokens. Contract: kernels/fp8.py.

A few tokens are multiplied as they are with weights widened in registers (fp8.py). Many are rounded (fp8_rows.py) and
multiplied as FP8 by torch's scaled product, or by fp8_many.py: where scales are by block, and where one tile of tokens
meets many outputs, for which torch's takes up to a third longer (an H200, `python -m threefold.bench.kernels_fp8`).
"""

from __future__ import annotations

import math

import torch

from threefold.kernels.activation import silu_mul
from threefold.kernels.fp8 import (
    MAX_FEW_TOKENS_FP8,
    Activations,
    Fp8Inputs,
    Fp8Weight,
    Rounded,
    Rounding,
    RoundingProduct,
)
from threefold.kernels.triton.fp8 import MAX_TILE_TOKENS, few_tokens_fp8_body
from threefold.kernels.triton.fp8_many import many_tokens_fp8
from threefold.kernels.triton.fp8_rows import round_rows_body
from threefold.kernels.triton.product import LEAST_TOKENS
from threefold.kernels.triton.tables import (
    MAX_ONE_TILE_FP8,
    ProductSizes,
    fp8_block_sizes,
    fp8_many_sizes,
    fp8_product_sizes,
)

_ALIGNMENT = 16
"""Inputs and outputs that torch's scaled product takes at a time."""
_MANY_OUTPUTS = 16384
"""From here on Triton's product is the faster one for one tile of tokens."""


class CardFp8Product(RoundingProduct):
    """A function of x [num_tokens, in], plain or rounded already, to [num_tokens, out].

    Args:
        weight: on the card.
        bias: [out] or None.
        is_gated: as in kernels/linear.py.
        dtype: of x and the results.
        inputs: how x is rounded.
    """

    def __init__(
        self, weight: Fp8Weight, bias: torch.Tensor | None, *, is_gated: bool, dtype: torch.dtype, inputs: Fp8Inputs
    ) -> None:
        self._weight = weight
        self._bias = bias
        self._bias_bf16 = None if bias is None else bias.bfloat16()
        self._dtype = dtype
        self._is_gated = is_gated
        self._transposed = weight.values.t()
        self._gate = silu_mul(weight.values.shape[0] // 2, dtype, weight.values.device)
        self._next: Rounding | None = None
        self._least, self._few = (
            few_tokens_fp8_body(*weight, bias, _sizes(weight, num_tokens, is_gated), is_gated=is_gated)
            for num_tokens in (LEAST_TOKENS, MAX_TILE_TOKENS)
        )
        self._round = round_rows_body(inputs)
        self._max_few: float = MAX_FEW_TOKENS_FP8 if _takes_rounded(weight) else math.inf
        is_by_token = _takes_rounded(weight) and weight.block_size is None
        self.rounding = Rounding(MAX_FEW_TOKENS_FP8, inputs) if is_by_token else None

    def round_result(self, rounding: Rounding) -> None:
        """Let `handed_on` round the gate's results for the next product."""
        assert self._is_gated, "a gate's result alone is written by an op of its own"
        self._next = rounding
        self._round_gate = round_rows_body(rounding.inputs, is_gated=True)

    def __call__(self, x: Activations) -> torch.Tensor:
        """The product."""
        if isinstance(x, torch.Tensor) and x.shape[0] <= self._max_few:
            return self._least(x) if x.shape[0] <= LEAST_TOKENS else self._few(x)
        return self.multiply_many(x)

    def multiply_many(self, x: Activations) -> torch.Tensor:
        """The product of FP8 with FP8, whatever the number of tokens."""
        result = self._ungated(x)
        return self._gate(result) if self._is_gated else result

    def handed_on(self, x: Activations) -> Activations:
        """The product, rounded for the next one where both serve so many tokens."""
        num_tokens = x.values.shape[0] if isinstance(x, Rounded) else x.shape[0]
        if self._next is None or num_tokens <= max(self._max_few, self._next.more_than):
            return self(x)
        return self._round_gate(self._ungated(x))

    def _ungated(self, x: Activations) -> torch.Tensor:
        if isinstance(x, Rounded):
            return self._by_token(x)
        return self._by_token(self._round(x)) if self._weight.block_size is None else self._by_block(x)

    def _by_token(self, x: Rounded) -> torch.Tensor:
        """The product of rows and outputs with a scale each."""
        num_tokens = x.values.shape[0]
        if num_tokens > MAX_ONE_TILE_FP8 or self._weight.values.shape[0] < _MANY_OUTPUTS:
            return self._by_torch(x)
        sizes = fp8_many_sizes(num_tokens, None)
        return many_tokens_fp8(x.values, x.scales, *self._weight, self._bias, sizes, self._dtype)

    def _by_torch(self, x: Rounded) -> torch.Tensor:
        """Torch's own; it writes bfloat16 alone."""
        result: torch.Tensor = torch._scaled_mm(
            x.values,
            self._transposed,
            scale_a=x.scales[:, None],
            scale_b=self._weight.scales[None, :],
            bias=self._bias_bf16,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        return result.to(self._dtype)

    def _by_block(self, x: torch.Tensor) -> torch.Tensor:
        weight = self._weight
        assert weight.block_size is not None, "scales are by block"
        block_inputs = weight.block_size[1]
        groups = self._round(x.reshape(-1, block_inputs))
        num_tokens = x.shape[0]
        return many_tokens_fp8(
            groups.values.view(x.shape),
            groups.scales.view(num_tokens, -1),
            *weight,
            self._bias,
            fp8_many_sizes(num_tokens, block_inputs),
            self._dtype,
        )


def _sizes(weight: Fp8Weight, num_tokens: int, is_gated: bool) -> ProductSizes:
    if weight.block_size is not None:
        return fp8_block_sizes(weight.block_size[1], is_gated=is_gated)
    return fp8_product_sizes(*weight.values.shape, is_gated=is_gated, num_tokens=num_tokens)


def _takes_rounded(weight: Fp8Weight) -> bool:
    """Whether products of FP8 with FP8 take this shape."""
    num_outputs, num_inputs = weight.values.shape
    if weight.block_size is not None:
        return num_inputs % weight.block_size[1] == 0
    return num_outputs % _ALIGNMENT == 0 and num_inputs % _ALIGNMENT == 0
