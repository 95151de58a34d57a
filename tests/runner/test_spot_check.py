"""Stored costs against a device whose clock is a formula."""

from __future__ import annotations

import pytest
import torch

from threefold.cost import CostCurve, StepShape
from threefold.layers.batch import Batch
from threefold.runner.calibrate import CalibrationLimits
from threefold.runner.spot_check import LOOKS, is_far, slowness

CURVE = CostCurve([(1, 10.0), (8, 12.0), (64, 50.0)], row_ms=0.1, kv_token_ms=0.001)
LIMITS = CalibrationLimits(
    num_blocks=64, block_size=16, max_num_seqs=64, max_num_batched_tokens=512, max_model_len=2048
)


class FormulaDevice:
    """A step takes what the curve says, times a factor that may depend on its rows."""

    torch_device = torch.device("cpu")

    def __init__(self, factor: float, lonely_factor: float | None = None) -> None:
        self.factor = factor
        self.lonely_factor = lonely_factor or factor
        self.shapes: list[StepShape] = []
        self.num_readings = 0
        self.slow_start_ms = 0.0

    def run(self, batch: Batch) -> None:
        rows = len(batch.context_lens)
        self.shapes.append(StepShape(len(batch.token_ids), rows, int(batch.context_lens.sum())))

    def time_ms(self, work) -> float:
        work()
        self.num_readings += 1
        shape = self.shapes[-1]
        factor = self.lonely_factor if shape.num_tokens == 1 else self.factor
        disturbed = 5.0 if self.num_readings % 2 else 1.0  # every other reading is of no worth
        ms = CURVE.forward_ms(shape) * factor * (disturbed if self.slow_start_ms <= 0 else 6.0)
        self.slow_start_ms -= ms
        return ms


@pytest.mark.parametrize(("factor", "is_other"), [(1.0, False), (1.4, False), (0.7, False), (1.6, True), (0.5, True)])
def test_another_pace_is_seen(factor: float, is_other: bool) -> None:
    device = FormulaDevice(factor)
    ratio = slowness(CURVE, device.run, device, LIMITS, lambda _: None)  # type: ignore[arg-type]
    assert ratio == pytest.approx(factor)
    assert is_far(ratio) == is_other
    assert {shape[:2] for shape in device.shapes} == {(1, 1), (8, 1), (16, 16)}


def test_what_slows_steps_for_a_moment_is_not_the_machine() -> None:
    device, pauses = FormulaDevice(1.0), []
    device.slow_start_ms = 1200.0  # some of the first look is quick already

    ratio = slowness(CURVE, device.run, device, LIMITS, pauses.append)  # type: ignore[arg-type]
    assert ratio == pytest.approx(1.0)
    assert len(pauses) == 1


def test_a_machine_that_is_slow_is_looked_at_several_times_and_a_quicker_one_once() -> None:
    for factor, num_pauses in ((2.0, LOOKS - 1), (0.5, 0)):
        device, pauses = FormulaDevice(factor), []
        ratio = slowness(CURVE, device.run, device, LIMITS, pauses.append)  # type: ignore[arg-type]
        assert ratio == pytest.approx(factor)
        assert len(pauses) == num_pauses


def test_one_shape_that_is_off_says_nothing() -> None:
    device = FormulaDevice(1.1, lonely_factor=3.0)
    assert slowness(CURVE, device.run, device, LIMITS) == pytest.approx(1.1)  # type: ignore[arg-type]


def test_shapes_stay_within_what_the_engine_can_meet() -> None:
    small = CalibrationLimits(num_blocks=2, block_size=16, max_num_seqs=4, max_num_batched_tokens=4, max_model_len=20)
    device = FormulaDevice(1.0)
    slowness(CURVE, device.run, device, small)  # type: ignore[arg-type]
    assert set(device.shapes) == {StepShape(1, 1, 20), StepShape(4, 1, 20), StepShape(4, 4, 80)}
