"""What steps cost on this device: as stored, where the machine is still the one it was, else measured.

Nothing is measured before somebody asks. Knows nothing about what the curve is used for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from threefold import __version__
from threefold.cost import CostCurve
from threefold.engine.curve_store import CurveStore
from threefold.engine.opened import Opened, calibration_limits
from threefold.layers.batch import Batch
from threefold.runner.calibrate import measure_steps
from threefold.runner.memory import MemoryPlan
from threefold.runner.spot_check import is_far, slowness


class StepCosts:
    """A cost curve that comes to be when it is first asked for.

    Args:
        opened: the engine's model and device.
        plan: its memory.
        run: runs a batch as the engine would.
    """

    def __init__(self, opened: Opened, plan: MemoryPlan, run: Callable[[Batch], object]) -> None:
        self._run = run
        self._device = opened.device
        limits = calibration_limits(opened, plan.num_blocks)
        self._limits = replace(limits, max_num_seqs=plan.max_num_seqs, max_model_len=plan.max_model_len)
        self._store = CurveStore(_key(opened, plan))
        self._known: tuple[dict[str, Any], str] | None = None

    def curve(self) -> tuple[CostCurve, str]:
        """A curve of the caller's own, and where it came from."""
        if self._known is None:
            curve, source = self._found()
            self._known = curve.to_dict(), source
        data, source = self._known
        return CostCurve.from_dict(data), source

    def _found(self) -> tuple[CostCurve, str]:
        stored = self._store.load()
        if stored is None:
            return self._measured(), "step costs measured now"
        # It was kept on a machine that was busy, or this one is.
        ratio = slowness(stored, self._run, self._device, self._limits)
        if is_far(ratio):
            return self._measured(), f"step costs measured anew, steps take {ratio:.2f} times what was stored"
        return stored, f"step costs measured earlier ({self._store.path.name})"

    def _measured(self) -> CostCurve:
        curve = CostCurve.from_measurements(measure_steps(self._run, self._device, self._limits))
        self._store.save(curve)
        return curve


def _key(opened: Opened, plan: MemoryPlan) -> dict[str, object]:
    """All that a step's time depends on."""
    return {
        "model": repr(opened.spec),
        "storage": opened.checkpoint.storage,
        "dtype": opened.limits.dtype,
        "kv_cache_dtype": opened.limits.kv_cache_dtype,
        "device": opened.device.name,
        "max_num_seqs": plan.max_num_seqs,
        "max_num_batched_tokens": opened.limits.max_num_batched_tokens,
        "torch": torch.__version__,
        "threefold": __version__,
        **({"graphs": opened.config.speculation.max_draft_tokens} if opened.device.is_gpu else {}),
        **({"enforce_eager": True} if opened.config.device.enforce_eager else {}),
    }
