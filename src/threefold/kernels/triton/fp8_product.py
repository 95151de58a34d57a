"""An FP8 product on a card: which body serves how many tokens. Contract: kernels/fp8.py.

A few tokens are multiplied as they are with weights widened in registers (fp8.py). More are rounded (fp8_rows.py) and
multiplied as FP8: one tile of tokens by fp8_tile.py, many by torch's scaled product, or by fp8_many.py where scales are
by block.
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
from threefold.kernels.triton.fp8 import few_tokens_fp8_body
from threefold.kernels.triton.fp8_many import many_tokens_fp8
from threefold.kernels.triton.fp8_rows import round_rows_body
from threefold.kernels.triton.fp8_tables import (
    MAX_FEW_BY_BLOCK,
    MAX_TILED_TOKENS,
    fp8_few_sizes,
    fp8_many_sizes,
    fp8_tile_sizes,
)
from threefold.kernels.triton.fp8_tile import tile_fp8_body

_ALIGNMENT = 16
"""Inputs and outputs that torch's scaled product takes at a time."""


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
        self._few = few_tokens_fp8_body(*weight, bias, is_gated=is_gated)
        self._tile = tile_fp8_body(weight, bias, is_gated=is_gated, dtype=dtype)
        self._round = round_rows_body(inputs)
        most = MAX_FEW_TOKENS_FP8 if weight.block_size is None else MAX_FEW_BY_BLOCK
        self._max_few: float = most if _takes_rounded(weight) else math.inf
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
            block_size = self._weight.block_size
            sizes = fp8_few_sizes(x.shape[0], len(self._weight.values), block_size and block_size[1])
            return self._few(x, sizes)
        return self.multiply_many(x)

    def multiply_many(self, x: Activations) -> torch.Tensor:
        """The product of FP8 with FP8, whatever the number of tokens."""
        if self._weight.block_size is None and _num_tokens(x) <= MAX_TILED_TOKENS:
            return self._tile(self._rounded(x), fp8_tile_sizes(_num_tokens(x), len(self._weight.values)))
        result = self._ungated(x)
        return self._gate(result) if self._is_gated else result

    def handed_on(self, x: Activations) -> Activations:
        """The product, rounded for the next one where both serve so many tokens and the gate is an op of its own."""
        if self._next is None or _num_tokens(x) <= max(self._max_few, self._next.more_than, MAX_TILED_TOKENS):
            return self(x)
        return self._round_gate(self._ungated(x))

    def _rounded(self, x: Activations) -> Rounded:
        return x if isinstance(x, Rounded) else self._round(x)

    def _ungated(self, x: Activations) -> torch.Tensor:
        if isinstance(x, torch.Tensor) and self._weight.block_size is not None:
            return self._by_block(x)
        return self._by_torch(self._rounded(x))

    def _by_torch(self, x: Rounded) -> torch.Tensor:
        """Torch's own; it writes bfloat16 alone. With a bias it refuses 17 tokens: so few do not come here."""
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
            weight.values,
            weight.scales,
            weight.block_size,
            self._bias,
            fp8_many_sizes(num_tokens, block_inputs),
            self._dtype,
        )


def _num_tokens(x: Activations) -> int:
    return x.values.shape[0] if isinstance(x, Rounded) else x.shape[0]


def _takes_rounded(weight: Fp8Weight) -> bool:
    """Whether products of FP8 with FP8 take this shape."""
    num_outputs, num_inputs = weight.values.shape
    if weight.block_size is not None:
        return num_inputs % weight.block_size[1] == 0
    return num_outputs % _ALIGNMENT == 0 and num_inputs % _ALIGNMENT == 0
