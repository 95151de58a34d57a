"""Scales of an FP8 KV cache: the checkpoint's, or measured on one trial pass; fixed before anything is served.

What is stored is a number divided by its scale. FP8 (e4m3) has a floating point, so a scale decides nothing about
precision, only which numbers are too large (above 448) or too small (below 2^-9) to be kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from threefold.kernels.kv import FP8
from threefold.layers.attention import KVCache
from threefold.models.checkpoint import Checkpoint
from threefold.models.kv_scales import KVScales, checkpoint_kv_scales
from threefold.models.spec import ModelSpec
from threefold.runner.calibrate import CalibrationLimits, made_up_batch
from threefold.runner.device import Device
from threefold.runner.kv_pool import allocate_pool
from threefold.runner.runner import Model

TRIAL_TOKENS = 512
HEADROOM = 4
"""Numbers may become so many times as large as in the trial before they are cut off."""
_BLOCK_SIZE = 16
_LEAST_PEAK = 2.0**-20


@torch.inference_mode()
def scale_kv(kv: Sequence[KVCache], checkpoint: Checkpoint, model: Model, dtype: torch.dtype, device: Device) -> None:
    """Give an FP8 cache its scales; any other keeps its ones. To be done before graphs are captured over it.

    Args:
        kv: one empty cache a layer.
        checkpoint: may bring scales; else they are measured.
        model: loaded from it.
        dtype: of its activations.
        device: where it lives.

    Raises:
        ModelLoadError: the checkpoint's scales are not what they should be.
    """
    if kv[0].keys.dtype != FP8:
        return
    scales = checkpoint_kv_scales(checkpoint.source, len(kv))
    if scales is None:
        scales = measure_kv_scales(model, checkpoint.spec, dtype, device)
    for cache, scale in zip(kv, scales, strict=True):
        cache.key_scale.fill_(scale.key)
        cache.value_scale.fill_(scale.value)


@torch.inference_mode()
def measure_kv_scales(model: Model, spec: ModelSpec, dtype: torch.dtype, device: Device) -> list[KVScales]:
    """One layer's scales after another, from the largest keys and values of a pass over random tokens.

    Args:
        model: loaded.
        spec: its shape.
        dtype: of its activations; the trial's keys and values are kept in it.
        device: where it lives.
    """
    num_tokens = min(TRIAL_TOKENS, spec.max_positions)
    num_blocks = -(-num_tokens // _BLOCK_SIZE)
    kv = allocate_pool(spec, num_blocks, _BLOCK_SIZE, dtype, device.torch_device)
    limits = CalibrationLimits(num_blocks, _BLOCK_SIZE, 1, num_tokens, num_tokens)
    batch = made_up_batch(1, num_tokens, num_tokens, limits, device.torch_device)
    tokens = torch.randint(spec.vocab_size, (num_tokens,), generator=torch.Generator().manual_seed(0))
    model.forward(replace(batch, token_ids=tokens.to(device.torch_device)), kv)
    return [KVScales(_scale(cache.keys), _scale(cache.values)) for cache in kv]


def _scale(numbers: torch.Tensor) -> float:
    """A power of two, which no stored digit is lost to."""
    peak = float(numbers.abs().max())
    if not (0 < peak < math.inf):
        return 1.0  # nothing was learned
    largest = torch.finfo(FP8).max
    return float(2.0 ** math.ceil(math.log2(max(peak, _LEAST_PEAK) * HEADROOM / largest)))
