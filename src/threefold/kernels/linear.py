"""Products with weights.

Contract: y = x · weightᵀ + bias, x [num_tokens, in], weight [out, in]. A body takes the weight over: it may keep it in
an order of its own, and the plain copy is then freed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

Product = Callable[[torch.Tensor], torch.Tensor]

MAX_FEW_TOKENS = 24
"""Up to here the compiled body is the faster one, measured."""

_TRIAL_TOKENS, _TRIAL_IN, _TRIAL_OUT = 16, 1024, 3072
_TRIAL_ROUNDS = 15


def has_packed_bf16() -> bool:
    """Whether torch's oneDNN multiplies bf16 on this processor, with weights put in its order beforehand."""
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def is_packed(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether `product` keeps weights of this dtype in oneDNN's order instead of as they are."""
    return device.type == "cpu" and dtype == torch.bfloat16 and has_packed_bf16()


def product(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """The fastest body for this weight: a function of x [num_tokens, in]. Keep no reference to `weight`.

    Args:
        weight: [out, in].
        bias: [out] or None.
    """
    if is_packed(weight.dtype, weight.device):
        return _packed(weight, bias)
    return lambda x: F.linear(x, weight, bias)


def _packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    # oneDNN would otherwise put the weight in this order on each call: half of the time at few tokens.
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    few, multiply = few_tokens_product(packed, weight.shape, bias), torch.ops.mkldnn._linear_pointwise.default

    def many(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = multiply(x, packed, bias, "none", [], "")
        return result

    return many if few is None else lambda x: few(x) if x.shape[0] <= MAX_FEW_TOKENS else many(x)


def few_tokens_product(packed: torch.Tensor, shape: torch.Size, bias: torch.Tensor | None) -> Product | None:
    """A compiled body for few tokens that reads oneDNN's own copy of a bf16 weight; None where it cannot.

    The order of that copy is oneDNN's business and may change, so the body first proves itself on this very weight.

    Args:
        packed: the weight in oneDNN's order; the body keeps it.
        shape: of the plain weight, (out, in).
        bias: [out] or None.
    """
    from threefold.kernels.native import product as native

    num_outputs, num_inputs = shape
    is_whole = num_outputs % native.BLOCK_OUTPUTS == 0 and num_inputs % native.INPUT_MULTIPLE == 0
    if not is_whole or torch.ops.mkldnn._nbytes(packed) != num_outputs * num_inputs * 2:
        return None
    run, num_items = native.product_body(), num_outputs // native.BLOCK_OUTPUTS
    added = torch.zeros(num_outputs, dtype=torch.bfloat16) if bias is None else bias
    address, added_address = torch.ops.mkldnn.data_ptr(packed), added.data_ptr()

    def multiply(x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        num_tokens = x.shape[0]
        out = x.new_empty((num_tokens, num_outputs))
        run(num_items, x.data_ptr(), address, added_address, out.data_ptr(), num_tokens, num_inputs, num_outputs)
        return out

    trial = torch.arange(num_inputs, dtype=torch.float32).sin()[None].bfloat16()
    expected = torch.ops.mkldnn._linear_pointwise.default(trial, packed, bias, "none", [], "")
    return multiply if torch.allclose(multiply(trial), expected, rtol=0.05, atol=0.05) else None


def preferred_cpu_dtype() -> torch.dtype:
    """bfloat16 where its products are faster than float32's on this processor, else float32; measured, under 0.3 s."""
    if not has_packed_bf16():
        return torch.float32
    times_ms = {dtype: _trial_ms(dtype) for dtype in (torch.bfloat16, torch.float32)}
    return min(times_ms, key=lambda dtype: times_ms[dtype])


def _trial_ms(dtype: torch.dtype) -> float:
    """Best time of a product of the size that small models have, at the tokens that small batches have."""
    x = torch.ones((_TRIAL_TOKENS, _TRIAL_IN), dtype=dtype)
    multiply = product(torch.ones((_TRIAL_OUT, _TRIAL_IN), dtype=dtype), None)
    best_s = float("inf")
    for _ in range(_TRIAL_ROUNDS):
        start_s = time.perf_counter()
        multiply(x)
        best_s = min(best_s, time.perf_counter() - start_s)
    return best_s * 1e3
