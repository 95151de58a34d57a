"""A step's time on the card by what it is spent on, from torch's profiler. Knows kernels by their names only."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch.profiler import ProfilerActivity, profile

PARTS = (
    ("attention", ("attend", "attention", "fmha", "flash", "split_kv", "combine", "merge_splits")),
    ("sampling", ("winner", "argmax", "_draw", "_summarise", "logsumexp", "topk", "softmax", "_weigh_", "_note_")),
    ("products", ("gemm", "nvjet", "cutlass", "cublas", "gemv", "splitk", "matmul", "cudnn", "few_tokens", "few_rows",
                  "many_tokens", "tile_fp8", "tile_int8", "_tiled", "_dequantize", "add_splits")),
    ("copies to and from the host", ("memcpy htod", "memcpy dtoh")),
)  # fmt: skip
"""Words in the names of kernels, the first part that has one; what is left are small ops."""
REST = "small ops"
BETWEEN = "between kernels"
"""What a step takes on the card beside its kernels."""


def parts_of(work: Callable[[], object], num_steps: int) -> dict[str, float]:
    """Run some steps under the profiler; milliseconds a step and part, nothing where there is no card."""
    if num_steps == 0 or not torch.accelerator.is_available():
        return {}
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.accelerator.synchronize()
    return sum_parts(((event.key, event.self_device_time_total / 1000) for event in profiler.key_averages()), num_steps)


def sum_parts(kernels: Iterable[tuple[str, float]], num_steps: int) -> dict[str, float]:
    """Milliseconds a step of each part, given (kernel's name, its ms in all)."""
    parts = dict.fromkeys([*(name for name, _ in PARTS), REST], 0.0)
    for kernel, ms in kernels:
        lowered = kernel.lower()
        part = next((name for name, words in PARTS if any(word in lowered for word in words)), REST)
        parts[part] += ms / num_steps
    return parts
