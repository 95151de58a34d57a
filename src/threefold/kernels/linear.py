"""Products with weights.

Contract: y = x · weightᵀ + bias, x [num_tokens, in], weight [out, in]; gated, the first half of the outputs goes
through SiLU and is multiplied with the second (kernels/activation.py). A body takes the weight over: it may keep it in
an order of its own, and the plain copy is then freed.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from threefold.kernels.activation import silu_mul
from threefold.kernels.bodies import is_triton

Product = Callable[[torch.Tensor], torch.Tensor]

MAX_FEW_TOKENS_ON_CARD = 32
"""Up to here the Triton body is the faster one on an H200 (`python -m threefold.bench.kernels_products`)."""

MAX_FEW_TOKENS = 128
"""Up to here the compiled body is the faster one, measured with AVX512-BF16."""

MAX_FEW_TOKENS_BESIDE_AMX = 4
"""The same where oneDNN has AMX, whose products cost next to nothing more for more tokens; not measured."""


class Unnormed(NamedTuple):
    """Rows halfway through an RMS norm: the product that takes them divides its sums by the rows' root mean squares."""

    numbers: torch.Tensor
    """[num_tokens, width], the rows times the norm's weight, rounded once."""
    squares: torch.Tensor
    """[parts of the width, MAX_FEW_TOKENS_ON_CARD] float32: each row's sum of squares, by part."""
    eps: float


class NormSharing(ABC):
    """A product that does half of the norm before it, or after it, for a few tokens, so that no op stands between two
    products. A number is rounded as often as with the norm by itself, but before the division in place of after it.
    """

    max_tokens: int
    """Most tokens that it does so for."""

    @abstractmethod
    def __call__(self, x: torch.Tensor | Unnormed) -> torch.Tensor:
        """The product."""

    @abstractmethod
    def added_to(self, residual: torch.Tensor, x: torch.Tensor, norm_weight: torch.Tensor, eps: float) -> Unnormed:
        """Residual += product(x), in place, and its norm, as far as it goes here."""


_BLOCK_OUTPUTS, _BLOCK_INPUTS = 64, 32
_ALIGN_BYTES = 64
_TRIAL_BOUND = 0.02  # of the largest result; two bf16 roundings differ by 0.008, a wrong order by about 1

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


def product(weight: torch.Tensor, bias: torch.Tensor | None, *, is_gated: bool = False) -> Product:
    """The fastest body for this weight: a function of x [num_tokens, in]. Keep no reference to `weight`.

    Args:
        weight: [out, in].
        bias: [out] or None.
        is_gated: the outputs are a gate and what it is multiplied with; half as many numbers come out.
    """
    plain = _packed(weight, bias) if is_packed(weight.dtype, weight.device) else _as_it_is(weight, bias)
    if is_gated:
        gate = silu_mul(weight.shape[0] // 2, weight.dtype, weight.device)
        ungated = plain

        def plain(x: torch.Tensor) -> torch.Tensor:
            return gate(ungated(x))

    return _on_card(weight, bias, plain, is_gated=is_gated) if is_triton(weight.device, weight.dtype) else plain


def _as_it_is(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    return lambda x: F.linear(x, weight, bias)


def _on_card(weight: torch.Tensor, bias: torch.Tensor | None, many: Product, *, is_gated: bool) -> Product:
    from threefold.kernels.triton.product import CardProduct, FewTokens
    from threefold.kernels.triton.tables import product_sizes

    if weight.dtype == torch.float32:
        return many  # its tiles would not fit into shared memory
    few = FewTokens(weight, bias, partial(product_sizes, *weight.shape, is_gated=is_gated), is_gated=is_gated)
    if weight.dtype == torch.bfloat16:  # numbers that are not divided yet may be too large for float16
        return CardProduct(few, many)
    return lambda x: few(x) if x.shape[0] <= MAX_FEW_TOKENS_ON_CARD else many(x)


def _packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    from threefold.kernels.native.llvm import has_feature

    # oneDNN would otherwise put the weight in this order on each call: half of the time at few tokens.
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def many(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = multiply(x, packed, bias, "none", [], "")
        return result

    if not (can_read_packed(packed, weight.shape) and is_expected_order(packed, weight.shape)):
        return many
    few = FewTokensProduct(packed, weight.shape, bias)
    max_few = MAX_FEW_TOKENS_BESIDE_AMX if has_feature("amx-bf16") else MAX_FEW_TOKENS
    return lambda x: few(x) if x.shape[0] <= max_few else many(x)


def can_read_packed(packed: torch.Tensor, shape: torch.Size) -> bool:
    """Whether FewTokensProduct may try this weight: whole blocks without padding, at a known address, on a processor
    that multiplies bf16 pairs.
    """
    from threefold.kernels.native.llvm import has_feature

    is_whole = shape[0] % _BLOCK_OUTPUTS == 0 and shape[1] % _BLOCK_INPUTS == 0
    has_access = hasattr(torch.ops.mkldnn, "data_ptr") and hasattr(torch.ops.mkldnn, "_nbytes")
    if not (is_whole and has_access and has_feature("avx512bf16")):
        return False
    is_aligned = torch.ops.mkldnn.data_ptr(packed) % _ALIGN_BYTES == 0
    return is_aligned and bool(torch.ops.mkldnn._nbytes(packed) == shape[0] * shape[1] * 2)


def is_expected_order(packed: torch.Tensor, shape: torch.Size) -> bool:
    """Whether FewTokensProduct gives what oneDNN gives on this very weight, whose order is oneDNN's business."""
    trial = torch.arange(shape[1], dtype=torch.float32).sin()[None].bfloat16()
    expected = torch.ops.mkldnn._linear_pointwise.default(trial, packed, None, "none", [], "").float()
    difference = FewTokensProduct(packed, shape, None)(trial).float() - expected
    return bool(difference.abs().max() <= _TRIAL_BOUND * expected.abs().max())


class FewTokensProduct:
    """A compiled body for few tokens, which reads oneDNN's own copy of a bf16 weight at the speed of memory.

    Args:
        packed: the weight in oneDNN's order, see native/product.py.
        shape: of the plain weight, (out, in).
        bias: [out] or None.
    """

    def __init__(self, packed: torch.Tensor, shape: torch.Size, bias: torch.Tensor | None) -> None:
        from threefold.kernels.native.product import product_body

        self._run = product_body()
        self._packed = packed  # held, because the body reads it by its address
        self._address = torch.ops.mkldnn.data_ptr(packed)
        self._bias = torch.zeros(shape[0], dtype=torch.bfloat16) if bias is None else bias
        self._num_outputs, self._num_inputs = shape

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, in] bf16 -> [num_tokens, out] bf16."""
        x = x.contiguous()
        num_tokens = x.shape[0]
        out = x.new_empty((num_tokens, self._num_outputs))
        self._run(
            self._num_outputs // _BLOCK_OUTPUTS,
            x.data_ptr(),
            self._address,
            self._bias.data_ptr(),
            out.data_ptr(),
            num_tokens,
            self._num_inputs,
            self._num_outputs,
        )
        return out


def preferred_cpu_dtype() -> torch.dtype:
    """bfloat16 where its products are faster than float32's on this processor, else float32; measured, under 0.3 s."""
    if not has_packed_bf16():
        return torch.float32
    trials = {dtype: _trial(dtype) for dtype in (torch.bfloat16, torch.float32)}
    best_s = dict.fromkeys(trials, float("inf"))
    for _ in range(_TRIAL_ROUNDS):
        for dtype, trial in trials.items():  # in turn, so that a neighbour's busy moment meets both
            start_s = time.perf_counter()
            trial()
            best_s[dtype] = min(best_s[dtype], time.perf_counter() - start_s)
    return min(best_s, key=lambda dtype: best_s[dtype])


def _trial(dtype: torch.dtype) -> Callable[[], object]:
    """A product of the size that small models have, at the tokens that small batches have."""
    x = torch.ones((_TRIAL_TOKENS, _TRIAL_IN), dtype=dtype)
    multiply = product(torch.ones((_TRIAL_OUT, _TRIAL_IN), dtype=dtype), None)
    return lambda: multiply(x)
