"""Products with weights that stay packed in 4 or 8 bits.

Contract: y = x · weightᵀ + bias with the weight of records.py. Of every 32 inputs of a token, x is rounded to 255 even
steps between ± their largest, as the numbers of the weight are steps of theirs; sums of such steps are exact, and the
rest is float32. So a token's result is the same number however many tokens stand beside it, and it is right to about
half a percent of a result's usual size; what that does to a model's answers is in docs/LOG.md.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from threefold.kernels.activation import silu_mul
from threefold.kernels.linear import Product
from threefold.kernels.records import RECORD_INPUTS, RECORD_OUTPUTS, PackedWeight

_LARGEST = 127
_FEW_TOKENS = 8
"""Up to here every thread rounds all inputs for itself, into memory kept for it; more are shared, at a fork's cost."""
_MAX_ITEMS = 96


def has_packed_products(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether packed weights are multiplied here as they are; else they are unpacked when they are loaded.

    Float32 models are unpacked: who asks for float32 asks for its precision.
    """
    if device.type != "cpu" or dtype != torch.bfloat16:
        return False
    from threefold.kernels.native.llvm import has_feature

    return has_feature("avx512vnni") and has_feature("avx512bw")


def packed_reference(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The op in plain torch, float32: [num_tokens, in] -> [num_tokens, out]."""
    blocks = x.float().view(len(x), -1, RECORD_INPUTS)
    largest = blocks.abs().amax(2, keepdim=True)
    times = torch.where(largest == 0, 0.0, torch.full_like(largest, _LARGEST) / largest)
    steps = torch.round(blocks * times)
    unpacked = weight.rows(torch.arange(weight.num_outputs))
    return F.linear((steps * (largest * (1 / _LARGEST))).flatten(1), unpacked, None if bias is None else bias.float())


def packed_product(
    weight: PackedWeight,
    bias: torch.Tensor | None,
    *,
    is_gated: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    out_dtype: torch.dtype | None = None,
) -> Product:
    """A function of x [num_tokens, in]; see kernels/linear.py for a gated one.

    Args:
        weight: taken over.
        bias: [out] or None.
        is_gated: the outputs are a gate and what it is multiplied with; half as many numbers come out.
        dtype: of x, bfloat16 or float32.
        out_dtype: of the result; None = the same.
    """
    plain = PackedProduct(weight, bias, dtype, out_dtype or dtype)
    if not is_gated:
        return plain
    gate = silu_mul(weight.num_outputs // 2, out_dtype or dtype, weight.records.device)
    return lambda x: gate(plain(x))


class PackedProduct:
    """The compiled body; for its arguments see `packed_product`."""

    def __init__(
        self, weight: PackedWeight, bias: torch.Tensor | None, dtype: torch.dtype, out_dtype: torch.dtype
    ) -> None:
        from threefold.kernels.native.packed import packed_body, rounding_body
        from threefold.kernels.native.packed_tile import INPUT_BYTES

        self._weight = weight  # held, because the body reads it by its address
        self._records = weight.records.data_ptr()
        self._bias = torch.zeros(weight.num_outputs) if bias is None else bias.float()
        self._bias_address = self._bias.data_ptr()
        self._dtype, self._out_dtype = dtype, out_dtype
        self._num_records = weight.num_inputs // RECORD_INPUTS
        self._token_bytes = self._num_records * INPUT_BYTES
        self._few_inputs = self._memory_for_inputs(_FEW_TOKENS)
        self._few_address = self._few_inputs.data_ptr()
        num_parts = weight.num_outputs // RECORD_OUTPUTS
        self._parts_each = -(-num_parts // _MAX_ITEMS)
        self._num_items = -(-num_parts // self._parts_each)
        self._multiply = packed_body(weight.form, dtype.itemsize, out_dtype.itemsize)
        self._round = rounding_body(weight.form.zero, dtype.itemsize)

    def _memory_for_inputs(self, num_tokens: int) -> torch.Tensor:
        return torch.empty(num_tokens * self._token_bytes, dtype=torch.uint8)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, in] -> [num_tokens, out]."""
        assert x.dtype == self._dtype, "the product was made for another type"
        x = x.contiguous()
        num_tokens = x.shape[0]
        out = torch.empty((num_tokens, self._weight.num_outputs), dtype=self._out_dtype)
        if num_tokens <= _FEW_TOKENS:
            self._run(num_tokens, x.data_ptr(), self._few_address, out, is_rounded=False)
            return out
        inputs = self._memory_for_inputs(num_tokens)
        address = inputs.data_ptr()
        self._round(num_tokens, x.data_ptr(), address, self._num_records)
        self._run(num_tokens, x.data_ptr(), address, out, is_rounded=True)
        return out

    def _run(self, num_tokens: int, x: int, inputs: int, out: torch.Tensor, *, is_rounded: bool) -> None:
        self._multiply(
            self._num_items,
            x,
            self._records,
            self._bias_address,
            out.data_ptr(),
            inputs,
            is_rounded,
            num_tokens,
            self._num_records,
            self._weight.num_outputs,
            self._parts_each,
        )
