"""Is a stored cost curve that of this machine as it is now? A few steps tell in a moment.

Knows nothing about where curves are kept.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from threefold.cost import CostCurve, StepShape
from threefold.layers.batch import Batch
from threefold.runner.calibrate import CalibrationLimits, made_up_batch
from threefold.runner.device import Device

CONTEXT_TOKENS = 64
SHAPES = ((1, 1), (1, 8), (16, 1))
"""(rows, new tokens a row): what controller and latency targets ask about most, and quick."""
READINGS = 5
"""Of each shape, after one that warms it; the best counts, as it does in the curve."""
FAR = 1.5
"""By such a factor a machine is another one: a busy neighbour, another governor, another body of a kernel."""
LOOKS = 3
"""Before steps are called slow: what else the machine does may be over in a moment, and only ever adds to one."""
PAUSE_S = 0.7
"""Between looks."""


def slowness(
    curve: CostCurve,
    run: Callable[[Batch], object],
    device: Device,
    limits: CalibrationLimits,
    pause: Callable[[float], None] = time.sleep,
) -> float:
    """Time of steps over what the curve says, the middle one of a few shapes; the least of a few looks if it is high.

    Args:
        curve: as it was stored.
        run: runs a batch as the engine would.
        device: where.
        limits: the shapes that the engine can meet.
        pause: lets so many seconds pass.
    """
    ratio = _look(curve, run, device, limits)
    for _ in range(LOOKS - 1):
        if ratio <= FAR:
            break
        pause(PAUSE_S)
        ratio = min(ratio, _look(curve, run, device, limits))
    return ratio


def _look(curve: CostCurve, run: Callable[[Batch], object], device: Device, limits: CalibrationLimits) -> float:
    ratios = []
    for most_rows, most_new in SHAPES:
        batch = _batch(most_rows, most_new, limits, device.torch_device)
        run(batch)
        ms = min(device.time_ms(partial(run, batch)) for _ in range(READINGS))
        shape = StepShape(batch.num_tokens, batch.num_rows, batch.num_rows * batch.max_context)
        ratios.append(ms / curve.forward_ms(shape))
    return statistics.median(ratios)


def _batch(most_rows: int, most_new: int, limits: CalibrationLimits, device: torch.device) -> Batch:
    context = min(CONTEXT_TOKENS, limits.max_model_len, limits.num_blocks * limits.block_size)
    num_rows = min(most_rows, limits.max_num_seqs, limits.max_num_batched_tokens)
    num_new = min(most_new, limits.max_num_batched_tokens // num_rows, context)
    return made_up_batch(num_rows, num_new, context, limits, device)


def is_far(ratio: float) -> bool:
    """True when the curve is not that of the machine."""
    return not 1 / FAR <= ratio <= FAR
