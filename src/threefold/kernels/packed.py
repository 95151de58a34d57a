"""Products with weights that stay packed in 4 or 8 bits.

Contract: y = x · weightᵀ + bias with the weight of records.py. Of every 32 inputs of a token, x is rounded to 255 even
steps between ± their largest, as the numbers of the weight are steps of theirs; sums of such steps are exact, and the
rest is float32. So a token's result is the same number however many tokens stand beside it, and it is right to about
half a percent of a result's usual size; what that does to a model's answers is in docs/LOG.md.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from threefold.kernels.activation import silu_mul
from threefold.kernels.linear import Product
from threefold.kernels.records import RECORD_INPUTS, RECORD_OUTPUTS, PackedWeight

_LARGEST = 127
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
    out_dtype, width = out_dtype or dtype, weight.num_outputs // 2
    if is_gated and width % RECORD_OUTPUTS:
        plain, gate = packed_product(weight, bias, dtype=dtype), silu_mul(width, dtype, weight.records.device)
        return lambda x: gate(plain(x))
    return PackedProduct(weight, bias, is_gated=is_gated, dtype=dtype, out_dtype=out_dtype)


class PackedProduct:
    """The compiled body; for its arguments see `packed_product`.

    Attributes:
        form, num_inputs, num_outputs: of the weight.
        width: numbers that come out for a token, half as many as outputs if gated.
        records: of the weight, gates and what they are multiplied with in turns of 32 outputs, if gated.
        bias: float32 [out], in the same order.
        is_gated: as made.
    """

    def __init__(
        self,
        weight: PackedWeight,
        bias: torch.Tensor | None,
        *,
        is_gated: bool,
        dtype: torch.dtype,
        out_dtype: torch.dtype,
    ) -> None:
        from threefold.kernels.native.chain import Chain
        from threefold.kernels.native.packed import gated_body, packed_body, rounding_body
        from threefold.kernels.native.packed_tile import NOT_ROUNDED

        bias = torch.zeros(weight.num_outputs) if bias is None else bias.float()
        self.form, self.num_inputs, self.num_outputs = weight.form, weight.num_inputs, weight.num_outputs
        self.records = _in_turns(weight.records) if is_gated else weight.records
        self.bias = _in_turns(bias.view(-1, RECORD_OUTPUTS)).flatten() if is_gated else bias
        self.is_gated = is_gated
        self._dtype, self._out_dtype = dtype, out_dtype
        self.width = weight.num_outputs // 2 if is_gated else weight.num_outputs
        form, size = weight.form, out_dtype.itemsize
        body = gated_body(form, size, NOT_ROUNDED) if is_gated else packed_body(form, size)
        self._chain = Chain([rounding_body(form.zero, dtype.itemsize), body])
        self._round, self._multiply = self._chain.frames

    @property
    def num_records(self) -> int:
        """Of 32 inputs each."""
        return self.num_inputs // RECORD_INPUTS

    @property
    def cut(self) -> tuple[int, int]:
        """Items, and parts of 32 outputs in each; an item of a gated product is 32 channels."""
        num_parts = self.num_outputs // RECORD_OUTPUTS
        if self.is_gated:
            return num_parts // 2, 2
        parts_each = -(-num_parts // _MAX_ITEMS)
        return -(-num_parts // parts_each), parts_each

    def memory_for_inputs(self, num_tokens: int) -> torch.Tensor:
        """For so many tokens, rounded."""
        from threefold.kernels.native.packed_tile import inputs_bytes

        return torch.empty(inputs_bytes(num_tokens, self.num_records), dtype=torch.uint8)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, in] -> [num_tokens, out]."""
        assert x.dtype == self._dtype, "the product was made for another type"
        x = x.contiguous()
        num_tokens = x.shape[0]
        out = torch.empty((num_tokens, self.width), dtype=self._out_dtype)
        inputs = self.memory_for_inputs(num_tokens)
        num_items, parts_each = self.cut
        self._round[1:5] = num_tokens, x.data_ptr(), inputs.data_ptr(), self.num_records
        self._multiply[1:10] = (
            num_items,
            inputs.data_ptr(),
            self.records.data_ptr(),
            self.bias.data_ptr(),
            out.data_ptr(),
            num_tokens,
            self.num_records,
            self.width,
            parts_each,
        )
        self._chain.run()
        return out


def packed_rows(weight: PackedWeight, dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of outputs [n] int64: their weights, [n, in]. For who reads them as rows of a table."""
    from threefold.kernels.native.packed import unpacking_body

    run, num_records = unpacking_body(weight.form, dtype.itemsize), weight.num_inputs // RECORD_INPUTS

    def rows(outputs: torch.Tensor) -> torch.Tensor:
        outputs = outputs.contiguous()
        out = torch.empty((len(outputs), weight.num_inputs), dtype=dtype)
        run(len(outputs), outputs.data_ptr(), weight.records.data_ptr(), out.data_ptr(), num_records)
        return out

    return rows


def _in_turns(parts: torch.Tensor) -> torch.Tensor:
    """[2 n, ...] to the same, one of each half in turn."""
    return parts.view(2, -1, *parts.shape[1:]).transpose(0, 1).reshape(parts.shape)
