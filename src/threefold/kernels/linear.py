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
    multiply = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: multiply(x, packed, bias, "none", [], "")


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
