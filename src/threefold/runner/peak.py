"""Measures what the largest step holds beside weights and KV, and up to which size a step waits for the host.

Knows nothing about what the figures are used for.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from threefold.errors import MemoryPlanError
from threefold.layers.attention import KVCache
from threefold.layers.batch import Batch
from threefold.runner.calibrate import CalibrationLimits, made_up_batch
from threefold.runner.device import Device
from threefold.runner.runner import Model
from threefold.sample.draw import draw
from threefold.sample.logprobs import Choice, RawLogits
from threefold.sample.native import Filters
from threefold.sample.sampler import most_likely

TRIAL_POSITIONS = 64
"""Positions that a trial of the sampler is made with; what it holds grows in proportion to them."""
TRIAL_TOP = 20
NUM_LAUNCHES = 2
"""Of which the quicker counts."""


@torch.inference_mode()
def measure_forward_peak(model: Model, kv: list[KVCache], device: Device, limits: CalibrationLimits) -> int:
    """Bytes that a forward pass of max_num_batched_tokens held at most, logits left out.

    Args:
        model: loaded.
        kv: a small pool of limits.num_blocks blocks; what lies in it is overwritten.
        device: where both live.
        limits: the largest step; its prompts are as long as the pool and the model's context allow.

    Raises:
        MemoryPlanError: there is no memory for such a step.
    """
    # The first pass of a process also compiles bodies and fills pools, which is no part of a step.
    model.forward(made_up_batch(1, 1, 1, limits, device.torch_device), kv)

    def largest_step() -> None:
        model.forward(_largest_batch(limits, device), kv)

    return _peak(largest_step, device, f"a step of {limits.max_num_batched_tokens} tokens")


@torch.inference_mode()
def measure_launch_bound_tokens(model: Model, kv: list[KVCache], device: Device, limits: CalibrationLimits) -> int:
    """Tokens of a prompt that a card computes in the time that the host takes to launch its kernels one by one.

    Args:
        model: loaded, its largest step run before.
        kv: as above.
        device: a card.
        limits: the largest step, whose tokens take a card least each.
    """
    batch = _largest_batch(limits, device)
    launch_s: list[float] = []

    def largest_step() -> None:
        began_s = time.perf_counter()
        model.forward(batch, kv)
        launch_s.append(time.perf_counter() - began_s)

    work_ms = min(device.time_ms(largest_step) for _ in range(NUM_LAUNCHES))
    return int(batch.num_tokens * min(launch_s) * 1e3 / work_ms)


def _largest_batch(limits: CalibrationLimits, device: Device) -> Batch:
    num_new = min(limits.max_num_batched_tokens, limits.max_model_len, limits.num_blocks * limits.block_size)
    num_rows = max(1, limits.max_num_batched_tokens // num_new)
    return made_up_batch(num_rows, num_new, num_new, limits, device.torch_device)


@torch.inference_mode()
def measure_position_bytes(model: Model, kv: list[KVCache], device: Device, limits: CalibrationLimits) -> int:
    """Bytes that one position holds at most on its way from the hidden state to a token, all wishes granted.

    Args:
        model: loaded.
        kv: as above.
        device: a card; a CPU's accounts are too coarse for this.
        limits: bound the trial.

    Raises:
        MemoryPlanError: there is no memory for the trial.
    """
    num = min(TRIAL_POSITIONS, limits.max_num_batched_tokens)
    hidden = model.forward(made_up_batch(num, 1, 1, limits, device.torch_device), kv)
    _sample(model, hidden)  # compiles bodies
    peak = _peak(lambda: _sample(model, hidden), device, f"the logits of {num} positions")
    return -(-peak // num)


def _sample(model: Model, hidden: torch.Tensor) -> None:
    """What sampler.py does at most: raw logits kept, a draw with every filter, log-probabilities."""
    num = len(hidden)
    logits = model.logits(hidden)
    raw = RawLogits(logits, range(num))
    most_likely(logits)
    some = np.full(num, 0.9, dtype=np.float32)
    filters = Filters(np.full(num, TRIAL_TOP, dtype=np.int64), some, np.full(num, 1e-3, dtype=np.float32))
    every = torch.arange(num, device=logits.device)
    tokens = draw(logits[every], some, filters, np.full(num, 0.5)).tolist()
    raw.report([Choice(position, token, TRIAL_TOP) for position, token in enumerate(tokens)])


def _peak(work: Callable[[], object], device: Device, what: str) -> int:
    try:
        return device.measure_peak_bytes(work)
    except RuntimeError as error:
        if not device.is_out_of_memory(error):
            raise
        raise MemoryPlanError(
            f"{what} finds no memory beside the weights: lower --max-num-batched-tokens, or use a smaller model"
        ) from error
