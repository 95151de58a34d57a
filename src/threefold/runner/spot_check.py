"""Is a stored cost curve that of this machine as it is now? A few steps tell in a moment.

Knows nothing about where curves are kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

from threefold.cost import CostCurve, StepShape
from threefold.layers.batch import Batch
from threefold.runner.calibrate import CalibrationLimits, made_up_batch
from threefold.runner.device import Device

CONTEXT_TOKENS = 64
SHAPES = ((1, 1), (1, 8), (16, 1))
"""(rows, new tokens a row): what controller and latency targets ask about most, and quick."""
READINGS = 2
"""Of each, after one that warms it; the best counts, as it does in the curve."""
FAR = 1.5
"""By such a factor a machine is another one: a busy neighbour, another governor, another body of a kernel."""


def slowness(curve: CostCurve, run: Callable[[Batch], object], device: Device, limits: CalibrationLimits) -> float:
    """Time of steps over what the curve says, the middle one of a few shapes.

    Args:
        curve: as it was stored.
        run: runs a batch as the engine would.
        device: where.
        limits: the shapes that the engine can meet.
    """
    context = min(CONTEXT_TOKENS, limits.max_model_len, limits.num_blocks * limits.block_size)
    ratios = []
    for most_rows, most_new in SHAPES:
        num_rows = min(most_rows, limits.max_num_seqs, limits.max_num_batched_tokens)
        num_new = min(most_new, limits.max_num_batched_tokens // num_rows, context)
        batch = made_up_batch(num_rows, num_new, context, limits, device.torch_device)
        run(batch)
        ms = min(device.time_ms(partial(run, batch)) for _ in range(READINGS))
        shape = StepShape(num_rows * num_new, num_rows, num_rows * context)
        ratios.append(ms / curve.forward_ms(shape))
    return statistics.median(ratios)


def is_far(ratio: float) -> bool:
    """True when the curve is not that of the machine."""
    return not 1 / FAR <= ratio <= FAR
