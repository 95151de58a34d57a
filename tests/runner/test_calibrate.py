"""Made-up steps are real steps: a tiny decoder runs every shape, and the readings cover what the engine can meet."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from threefold.cost import CostCurve
from threefold.layers.attention import allocate_kv
from threefold.layers.batch import Batch
from threefold.models.decoder import Decoder
from threefold.models.shapes import expected_shapes
from threefold.models.spec import ModelSpec
from threefold.runner.calibrate import (
    CalibrationLimits,
    card_shapes,
    eager_step,
    made_up_batch,
    measure_steps,
    warm_prompts,
)
from threefold.runner.device import CpuDevice

SPEC = ModelSpec(
    architecture="LlamaForCausalLM",
    vocab_size=97,
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    intermediate_size=48,
    max_positions=128,
)
LIMITS = CalibrationLimits(num_blocks=16, block_size=8, max_num_seqs=16, max_num_batched_tokens=64, max_model_len=96)


@pytest.fixture
def decoder() -> Decoder:
    decoder = Decoder(SPEC, torch.float32, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    decoder.load((name, torch.randn(shape, generator=generator)) for name, shape in expected_shapes(SPEC).items())
    return decoder


def test_readings_cover_single_rows_batches_and_chunks_and_make_a_curve(decoder: Decoder) -> None:
    kv = allocate_kv(SPEC, LIMITS.num_blocks, LIMITS.block_size, torch.float32, torch.device("cpu"))

    readings = measure_steps(eager_step(decoder, kv), CpuDevice(1), LIMITS)

    shapes = [shape for shape, _ in readings]
    assert len(set(shapes)) == len(shapes)
    assert {1, 4, 16} <= {shape.num_rows for shape in shapes}
    assert max(shape.num_tokens for shape in shapes) <= LIMITS.max_num_batched_tokens
    assert all(ms > 0 for _, ms in readings)
    assert CostCurve.from_measurements(readings).ms(shapes[0]) > 0


def test_time_is_bounded(decoder: Decoder) -> None:
    kv = allocate_kv(SPEC, LIMITS.num_blocks, LIMITS.block_size, torch.float32, torch.device("cpu"))

    assert 1 == len(measure_steps(eager_step(decoder, kv), CpuDevice(1), LIMITS, max_s=0.0))


class CompilingDevice(CpuDevice):
    """Whose clock an hour goes by on whenever a shape is met for the first time, and a second with each step."""

    def __init__(self) -> None:
        super().__init__(1)
        self.now_ms = 0.0
        self.met: set[tuple[int, int, int]] = set()

    def run(self, batch: Batch) -> None:
        shape = (len(batch.context_lens), batch.max_new, batch.max_context)
        self.now_ms += 1e3 if shape in self.met else 3.6e6
        self.met.add(shape)

    def time_ms(self, work: Callable[[], object]) -> float:
        start = self.now_ms
        work()
        return self.now_ms - start


def test_the_bound_is_of_steps_and_not_of_compiling_bodies() -> None:
    """Each shape passes twice, the first time unmeasured."""
    device = CompilingDevice()

    readings = measure_steps(device.run, device, LIMITS, max_s=9.0)

    assert [1e3] * 5 == [ms for _, ms in readings]


def test_rows_use_slots_of_their_own_blocks_and_positions_at_the_end_of_the_context() -> None:
    batch = made_up_batch(2, 3, 20, LIMITS, torch.device("cpu"))

    assert [17, 18, 19, 17, 18, 19] == batch.positions.tolist()
    assert [17, 18, 19, 3 * 8 + 17, 3 * 8 + 18, 3 * 8 + 19] == batch.slots.tolist()
    assert [0, 3, 6] == batch.row_starts.tolist()
    assert [20, 20] == batch.context_lens.tolist()


@pytest.mark.parametrize(
    "limits",
    [
        CalibrationLimits(60_000, 16, 256, 8192, 32768),
        CalibrationLimits(60_000, 16, 4096, 8192, 32768),
        CalibrationLimits(9, 16, 5, 48, 100),
        CalibrationLimits(1, 16, 1, 1, 3),
    ],
)
def test_a_cards_shapes_are_distinct_and_within_the_limits(limits: CalibrationLimits) -> None:
    shapes = list(card_shapes(limits))

    assert len(set(shapes)) == len(shapes) >= 1
    for num_rows, num_new, context in shapes:
        assert 1 <= num_rows <= limits.max_num_seqs
        assert 1 <= num_new <= context <= min(limits.max_model_len, limits.num_blocks * limits.block_size)
        assert num_rows * num_new <= limits.max_num_batched_tokens


def test_a_card_is_asked_about_every_number_of_drafts_and_the_largest_batch() -> None:
    shapes = list(card_shapes(CalibrationLimits(60_000, 16, 256, 8192, 32768)))

    assert {(rows, new) for rows in (1, 32, 256) for new in range(1, 10)} <= {(rows, new) for rows, new, _ in shapes}
    assert (256, 1, 1024) in shapes
    assert (1, 8192, 8192) in shapes
    assert len(shapes) < 120


def test_prompts_of_all_lengths_that_a_step_may_have_are_warmed_up() -> None:
    seen: list[tuple[int, int]] = []
    limits = CalibrationLimits(64, 16, 20, 600, 32768)
    warm_prompts(
        lambda batch: seen.append((batch.token_ids.shape[0], batch.logit_tokens.shape[0])), CpuDevice(), limits
    )
    lengths = sorted({tokens for tokens, _ in seen})
    assert lengths == [32, 64, 128, 256, 512]
    # Twenty rows beside a long prompt want up to twenty tokens' logits: every tile's width, not quite full.
    assert sorted({wanted for tokens, wanted in seen if tokens == 512}) == [1, 2, 3, 5, 9, 17]


def test_no_step_is_warmed_up_that_the_pool_cannot_hold() -> None:
    seen: list[int] = []
    warm_prompts(lambda batch: seen.append(batch.token_ids.shape[0]), CpuDevice(), CalibrationLimits(1, 16, 8, 600, 99))
    assert seen == []
