from __future__ import annotations

import pytest
import torch

from threefold.errors import MemoryPlanError
from threefold.models.spec import ModelSpec
from threefold.runner import kv_pool
from threefold.runner.calibrate import CalibrationLimits
from threefold.runner.kv_pool import allocate_pool, block_bytes
from threefold.runner.peak import measure_forward_peak

SPEC = ModelSpec(
    architecture="tiny",
    vocab_size=32,
    hidden_size=16,
    num_layers=3,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    intermediate_size=16,
    max_positions=64,
)
CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_the_pool_is_as_large_as_its_blocks(dtype):
    pool = allocate_pool(SPEC, 10, 16, dtype, CPU)
    assert len(pool) == SPEC.num_layers
    assert sum(cache.num_bytes for cache in pool) == 10 * block_bytes(SPEC, 16, dtype)


def test_memory_that_is_gone_after_all_is_an_operators_error(monkeypatch):
    def allocate_kv(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(kv_pool, "allocate_kv", allocate_kv)
    with pytest.raises(MemoryPlanError, match="10 blocks"):
        allocate_pool(SPEC, 10, 16, torch.float32, CPU)


def test_the_largest_step_is_what_the_peak_is_measured_on(device, model):
    limits = CalibrationLimits(num_blocks=8, block_size=4, max_num_seqs=4, max_num_batched_tokens=60, max_model_len=20)
    assert measure_forward_peak(model, [], device, limits) >= 0
    largest = model.batches[-1]
    assert largest.num_tokens == 60
    assert largest.num_rows == 3
    assert largest.max_context == 20
    assert int(largest.slots.max()) < 8 * 4
