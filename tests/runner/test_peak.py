from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from threefold.errors import MemoryPlanError
from threefold.runner.calibrate import CalibrationLimits
from threefold.runner.device import CpuDevice
from threefold.runner.peak import (
    TRIAL_POSITIONS,
    measure_forward_peak,
    measure_launch_bound_tokens,
    measure_position_bytes,
)

LIMITS = CalibrationLimits(num_blocks=8, block_size=4, max_num_seqs=4, max_num_batched_tokens=90, max_model_len=20)


class CountingDevice(CpuDevice):
    """Says that everything held as many bytes as asked for, and knows when the work was done."""

    def __init__(self, peak_bytes):
        super().__init__(1)
        self.peak_bytes = peak_bytes
        self.num_measured = 0

    def measure_peak_bytes(self, work):
        work()
        self.num_measured += 1
        return self.peak_bytes


class SlowDevice(CpuDevice):
    """A card whose work takes many times what launching it takes."""

    def __init__(self, times_launching):
        super().__init__(1)
        self.times_launching = times_launching

    def time_ms(self, work):
        return self.times_launching * super().time_ms(work)


class FullModel:
    """A model for whose largest step there is no memory."""

    def __init__(self, model, error):
        self.model = model
        self.error = error

    def forward(self, batch, kv):
        if batch.num_tokens > 1:
            raise self.error
        return self.model.forward(batch, kv)


@pytest.mark.parametrize(("peak", "each"), [(64_000, 1000), (64_001, 1001), (0, 0)])
def test_positions_share_what_the_trial_held_rounded_up(model, peak, each):
    device = CountingDevice(peak)
    assert measure_position_bytes(model, [], device, LIMITS) == each
    assert device.num_measured == 1
    assert model.batches[-1].num_tokens == TRIAL_POSITIONS


def test_the_trial_is_no_larger_than_a_step(model):
    small = CalibrationLimits(num_blocks=8, block_size=4, max_num_seqs=4, max_num_batched_tokens=5, max_model_len=20)
    assert measure_position_bytes(model, [], CountingDevice(1000), small) == 200


def test_a_step_without_memory_is_an_operators_error(model):
    full = FullModel(model, RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"))
    with pytest.raises(MemoryPlanError, match=r"a step of 90 tokens finds no memory.*lower --max-num-batched-tokens"):
        measure_forward_peak(full, [], CpuDevice(1), LIMITS)


def test_other_faults_of_the_trial_stay_what_they_are(model):
    with pytest.raises(RuntimeError, match="shapes"):
        measure_forward_peak(FullModel(model, RuntimeError("shapes")), [], CpuDevice(1), LIMITS)


def test_the_forward_pass_is_the_largest(model):
    device = CountingDevice(7)
    assert measure_forward_peak(model, [], device, LIMITS) == 7
    assert model.batches[-1].num_tokens == 80
    assert torch.equal(model.batches[-1].context_lens, torch.full((4,), 20, dtype=torch.int32))


def test_a_small_vocabulary_is_fed_no_token_that_it_lacks(model):
    small = replace(LIMITS, vocab_size=64)
    measure_forward_peak(model, [], CountingDevice(7), small)
    measure_position_bytes(model, [], CountingDevice(7), small)
    assert max(int(batch.token_ids.max()) for batch in model.batches) == 63


@pytest.mark.parametrize(("times_launching", "most"), [(1.0, 80), (8.0, 10)])
def test_a_card_that_works_longer_than_launching_takes_is_bound_by_launching_for_fewer_tokens(
    model, times_launching, most
):
    found = measure_launch_bound_tokens(model, [], SlowDevice(times_launching), LIMITS)
    assert 0 <= found <= most
    assert model.batches[-1].num_tokens == 80
