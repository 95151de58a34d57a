"""Kernels that begin before the one ahead of them has ended: programmatic dependent launch, from Hopper on.

    kernel      begins when                                    reads what the one ahead wrote when
    ordinary    the one ahead has ended                        at once
    overlapped  every program of the one ahead has begun       after `wait_for_kernel_ahead`

So launching, and what is read before the wait, weights, which no kernel writes, hide behind the kernels ahead. A kernel
launched with `launch_pdl` must wait in every program and before any return: that it has ended then means that all
before it have. Two such kernels may both be under way early; an ordinary kernel between them only makes them wait.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803 (constants of compiled bodies, in capitals)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_HOPPER = (9, 0)


def can_overlap(device: torch.device) -> bool:
    """Whether kernels on this device can be launched early."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _HOPPER


@triton.jit
def let_next_begin(OVERLAPS: tl.constexpr):
    """The kernel behind may begin, as far as there is room beside this one; it will wait for this one's end."""
    if OVERLAPS:
        gdc_launch_dependents()


@triton.jit
def wait_for_kernel_ahead(OVERLAPS: tl.constexpr):
    """All that kernels ahead wrote may be read from here on, and what they read may be written."""
    if OVERLAPS:
        gdc_wait()


@triton.jit
def bring_near(pointers, NUM_BYTES: tl.constexpr):
    """Start reading NUM_BYTES from each address on into the card's cache; both are multiples of 16."""
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
        "=r,l,r",
        [pointers.to(tl.int64), tl.full(pointers.shape, NUM_BYTES, dtype=tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
