"""Measures what the largest step holds beside weights and KV. Knows nothing about what the figure is used for."""

from __future__ import annotations

import torch

from threefold.layers.attention import KVCache
from threefold.runner.calibrate import CalibrationLimits, made_up_batch
from threefold.runner.device import Device
from threefold.runner.runner import Model


@torch.inference_mode()
def measure_forward_peak(model: Model, kv: list[KVCache], device: Device, limits: CalibrationLimits) -> int:
    """Bytes that a forward pass of max_num_batched_tokens held at most; logits are left to memory.py's formula.

    Args:
        model: loaded.
        kv: a small pool of limits.num_blocks blocks; what lies in it is overwritten.
        device: where both live.
        limits: the largest step; its prompts are as long as the pool and the model's context allow.
    """
    num_new = min(limits.max_num_batched_tokens, limits.max_model_len, limits.num_blocks * limits.block_size)
    num_rows = max(1, limits.max_num_batched_tokens // num_new)
    # The first pass of a process also compiles bodies and fills pools, which is no part of a step.
    model.forward(made_up_batch(1, 1, 1, limits, device.torch_device), kv)
    batch = made_up_batch(num_rows, num_new, num_new, limits, device.torch_device)
    return device.measure_peak_bytes(lambda: model.forward(batch, kv))
