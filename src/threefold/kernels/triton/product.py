"""Products of a few tokens with a weight, read once at the speed of memory; with the gate of an MLP on the way out.

A program takes some outputs and all inputs, so a sum is made in one order, whatever else is in the batch. Programs are
small and many: what counts is how many bytes of the weight are under way. The weight is the left operand, so that a
tile of tokens may be eight wide. Where programs are few, each warp has inputs of its own.

A norm between two products is shared between them: the first adds to the residual and leaves the sums of its squares,
part by part; the second divides by their root. Contract: kernels/linear.py.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from threefold.kernels.linear import MAX_FEW_TOKENS_ON_CARD, NormSharing, Product, Unnormed
from threefold.kernels.triton.tables import ProductSizes

_LEAST_TOKENS = 8
"""Columns of the smallest tile that the tensor cores take; fewer tokens cost as much."""
_PART = tl.constexpr(16)
"""Outputs whose squares are summed by the first product, whatever its programs have."""
_STRIDE = tl.constexpr(MAX_FEW_TOKENS_ON_CARD)


@triton.jit
def _tile(base_ptr, rows, is_row, inputs, is_input, NUM_INPUTS: tl.constexpr, IS_EVEN: tl.constexpr,
          IS_WEIGHT: tl.constexpr, PIECES: tl.constexpr):  # fmt: skip
    """Rows of inputs, [rows, BLOCK_K], by piece where there are several; a weight's need not stay in the cache."""
    if PIECES > 1:
        rows, is_row, inputs, is_input = rows[None, :], is_row[None, :], inputs[:, None], is_input[:, None]
    rows, is_row = tl.expand_dims(rows, -1), tl.expand_dims(is_row, -1)
    if PIECES == 1:
        inputs, is_input = inputs[None, :], is_input[None, :]
    mask = is_row if IS_EVEN else is_row & is_input
    if IS_WEIGHT:
        return tl.load(base_ptr + rows * NUM_INPUTS + inputs, mask=mask, other=0.0, eviction_policy="evict_first")
    return tl.load(base_ptr + rows * NUM_INPUTS + inputs, mask=mask, other=0.0)


@triton.jit
def _added_in_pairs(numbers, AXIS: tl.constexpr, TIMES: tl.constexpr):
    """Sums away dimensions of two: in one order, where tl.sum's over one dimension follows from how numbers lie."""
    for _ in tl.static_range(TIMES):
        numbers = tl.sum(numbers, axis=AXIS)
    return numbers


@triton.jit
def _added(results, residual_ptrs, norm_ptrs, is_output, squares_ptrs, is_token, NUM_OUTPUTS: tl.constexpr,
           BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """Residual += results; returns it times the norm's weight and leaves the sums of its squares, part by part."""
    mask = is_token[None, :] & is_output[:, None]
    residual = tl.load(residual_ptrs, mask=mask, other=0.0)
    total = (residual.to(tl.float32) + results.to(tl.float32)).to(residual.dtype)
    tl.store(residual_ptrs, total, mask=mask)
    wide = tl.where(mask, total.to(tl.float32), 0.0)
    groups: tl.constexpr = BLOCK_N // _PART
    parts = tl.program_id(0) * groups + tl.arange(0, groups)
    squares = _added_in_pairs(tl.reshape(wide * wide, (groups, 2, 2, 2, 2, BLOCK_M)), 1, 4)
    is_part = (parts * _PART < NUM_OUTPUTS)[:, None]  # padding's zeros too, so that four numbers go and come at a time
    tl.store(squares_ptrs[None, :] + parts[:, None] * _STRIDE, squares, mask=is_part)
    return wide * tl.load(norm_ptrs, mask=is_output, other=0.0).to(tl.float32)[:, None]


# Whether tokens fill a tile is compiled in: a mask over them costs a tenth of the time of 32.
@triton.jit
def _few_tokens(x_ptr, weight_ptr, bias_ptr, out_ptr, residual_ptr, norm_ptr, squares_ptr, num_tokens, eps,
                NUM_OUTPUTS: tl.constexpr, NUM_INPUTS: tl.constexpr, HAS_BIAS: tl.constexpr, IS_GATED: tl.constexpr,
                PARTS: tl.constexpr, SQUARES: tl.constexpr, ADDS: tl.constexpr, BLOCK_M: tl.constexpr,
                BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PIECES: tl.constexpr):  # fmt: skip
    """Program: BLOCK_N of the NUM_OUTPUTS results of up to BLOCK_M tokens; gated, the weight has twice as many rows.

    With PARTS, x is not normed yet and its squares come in so many parts; where it ADDS, results are not normed either.
    SQUARES: their shape, as many twos as make PARTS, padded, and BLOCK_M.
    """
    outputs = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    is_output = outputs < NUM_OUTPUTS
    tokens = tl.arange(0, BLOCK_M)
    is_token = tokens < num_tokens
    if PARTS:  # early, since they arrive while the weight is read
        parts = tl.arange(0, 1 << (len(SQUARES) - 1))
        squares = tl.load(squares_ptr + parts[:, None] * _STRIDE + tokens[None, :], mask=(parts < PARTS)[:, None],
                          other=0.0)  # fmt: skip
    if PIECES > 1:
        acc = tl.zeros((PIECES, BLOCK_N, BLOCK_M), dtype=tl.float32)
    else:
        acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    up = acc
    step: tl.constexpr = BLOCK_K * PIECES
    is_even: tl.constexpr = NUM_INPUTS % step == 0
    for start in tl.range(0, NUM_INPUTS, step):
        inputs = start + tl.arange(0, BLOCK_K)
        if PIECES > 1:
            inputs = tl.arange(0, PIECES)[:, None] * BLOCK_K + inputs[None, :]
        is_input = inputs < NUM_INPUTS
        x = _tile(x_ptr, tokens, is_token, inputs, is_input, NUM_INPUTS, is_even, False, PIECES)
        x = tl.permute(x, (0, 2, 1)) if PIECES > 1 else tl.trans(x)
        weight = _tile(weight_ptr, outputs, is_output, inputs, is_input, NUM_INPUTS, is_even, True, PIECES)
        acc = tl.dot(weight, x, acc, input_precision="ieee")
        if IS_GATED:
            weight = _tile(weight_ptr, outputs + NUM_OUTPUTS, is_output, inputs, is_input, NUM_INPUTS, is_even, True,
                           PIECES)  # fmt: skip
            up = tl.dot(weight, x, up, input_precision="ieee")
    if PIECES > 1:
        acc = _added_in_pairs(tl.reshape(acc, (2, PIECES // 2, BLOCK_N, BLOCK_M)), 0, 2)
        up = _added_in_pairs(tl.reshape(up, (2, PIECES // 2, BLOCK_N, BLOCK_M)), 0, 2)
    if PARTS:
        total = _added_in_pairs(tl.reshape(squares, SQUARES), 0, len(SQUARES) - 1)
        inverse = tl.rsqrt(total / NUM_INPUTS + eps)[None, :]
        acc *= inverse
        up *= inverse
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[:, None]
        if IS_GATED:
            up += tl.load(bias_ptr + NUM_OUTPUTS + outputs, mask=is_output, other=0.0).to(tl.float32)[:, None]
    dtype = out_ptr.dtype.element_ty
    if IS_GATED:  # rounded in between, as the two ops by themselves would
        acc = acc.to(dtype).to(tl.float32)
        acc = acc / (1.0 + tl.exp(-acc)) * up.to(dtype).to(tl.float32)
    places = tokens[None, :] * NUM_OUTPUTS + outputs[:, None]
    mask = is_token[None, :] & is_output[:, None]
    if ADDS:
        acc = _added(acc.to(dtype), residual_ptr + places, norm_ptr + outputs, is_output, squares_ptr + tokens,
                     is_token, NUM_OUTPUTS, BLOCK_M, BLOCK_N)  # fmt: skip
    tl.store(out_ptr + places, acc.to(dtype), mask=mask)


class FewTokens:
    """The product of few tokens with one weight.

    Args:
        weight: [out, in].
        bias: [out] or None.
        cut: number of tokens to how the work is cut; outputs of a program are a multiple of 16.
        is_gated: the outputs are a gate and what it is multiplied with.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, cut: Callable[[int], ProductSizes], *, is_gated: bool
    ) -> None:
        self._tensors = weight, weight if bias is None else bias
        self._cut = cut
        self._num_outputs = weight.shape[0] // 2 if is_gated else weight.shape[0]
        self._constants = {
            "NUM_OUTPUTS": self._num_outputs,
            "NUM_INPUTS": weight.shape[1],
            "HAS_BIAS": bias is not None,
            "IS_GATED": is_gated,
        }

    def __call__(self, x: torch.Tensor | Unnormed) -> torch.Tensor:
        """[num_tokens, in] -> [num_tokens, out], or half as many where gated."""
        if isinstance(x, Unnormed):
            return self._launch(x.numbers, None, None, x.squares, x.eps)
        return self._launch(x, None, None, None, 0.0)

    def added_to(self, residual: torch.Tensor, x: torch.Tensor, norm_weight: torch.Tensor, eps: float) -> Unnormed:
        """Residual += product(x), in place, and what the norm of it is made from."""
        assert residual.is_contiguous(), "the residual is updated in place, row after row"
        num_parts = triton.cdiv(self._num_outputs, _PART.value)
        squares = x.new_empty((num_parts, MAX_FEW_TOKENS_ON_CARD), dtype=torch.float32)
        return Unnormed(self._launch(x, residual, norm_weight, squares, eps), squares, eps)

    def _launch(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        norm_weight: torch.Tensor | None,
        squares: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        x = x.contiguous()
        num_tokens = x.shape[0]
        sizes = self._cut(num_tokens)
        block_m = max(_LEAST_TOKENS, triton.next_power_of_2(num_tokens))
        out = x.new_empty((num_tokens, self._num_outputs))
        parts = 0 if squares is None or residual is not None else squares.shape[0]
        _few_tokens[(triton.cdiv(self._num_outputs, sizes.block_n),)](
            x,
            *self._tensors,
            out,
            out if residual is None else residual,
            out if norm_weight is None else norm_weight,
            out if squares is None else squares,
            num_tokens,
            eps,
            PARTS=parts,
            SQUARES=(2,) * (max(parts, 1) - 1).bit_length() + (block_m,),
            ADDS=residual is not None,
            BLOCK_M=block_m,
            BLOCK_N=sizes.block_n,
            BLOCK_K=sizes.block_k,
            PIECES=sizes.num_pieces,
            num_warps=sizes.num_warps,
            num_stages=sizes.num_stages,
            **self._constants,
        )
        return out


class CardProduct(NormSharing):
    """A product of few tokens by this file's body, of many by another."""

    max_tokens = MAX_FEW_TOKENS_ON_CARD

    def __init__(self, few: FewTokens, many: Product) -> None:
        self._few = few
        self._many = many

    def __call__(self, x: torch.Tensor | Unnormed) -> torch.Tensor:
        """As kernels/linear.py has it."""
        if isinstance(x, Unnormed) or x.shape[0] <= self.max_tokens:
            return self._few(x)
        return self._many(x)

    def added_to(self, residual: torch.Tensor, x: torch.Tensor, norm_weight: torch.Tensor, eps: float) -> Unnormed:
        """As kernels/linear.py has it."""
        return self._few.added_to(residual, x, norm_weight, eps)
