"""A card's memory: weights made or brought there, failed allocations known and survived, the measured step held."""

from __future__ import annotations

import time

import pytest
import torch
from safetensors.torch import save_file

from threefold.layers.attention import allocate_kv
from threefold.models.decoder import Decoder
from threefold.models.shapes import expected_shapes
from threefold.models.spec import ModelSpec
from threefold.models.upload import Stage
from threefold.models.weights import DummyWeights, SafetensorsWeights
from threefold.runner.calibrate import CalibrationLimits, eager_step, measure_steps
from threefold.runner.device import CudaDevice
from threefold.runner.peak import measure_forward_peak, measure_position_bytes

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]
CARD = torch.device("cuda", 0)
SPEC = ModelSpec("LlamaForCausalLM", 32_000, 1024, 4, 8, 4, 128, 2816, 4096)
QWEN3_8B = ModelSpec(
    "Qwen3ForCausalLM", 151_936, 4096, 36, 32, 8, 128, 12_288, 40_960, has_qk_norm=True, has_tied_head=False
)
LIMITS = CalibrationLimits(
    num_blocks=128, block_size=16, max_num_seqs=64, max_num_batched_tokens=1024, max_model_len=2048
)


def test_a_failed_allocation_is_known_and_leaves_everything_else_as_it_was() -> None:
    device = CudaDevice()
    kept = torch.arange(10, device=CARD)
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 42, dtype=torch.uint8, device=CARD)
    assert device.is_out_of_memory(caught.value)
    assert torch.arange(10).tolist() == kept.tolist()
    device.release_unused()
    assert 0 < device.free_bytes() <= device.total_bytes()


def test_bytes_arrive_as_they_were_and_types_change_on_the_card() -> None:
    stage = Stage(CARD, buffer_bytes=1 << 12)
    for shape in ((), (0,), (7,), (333, 1021)):
        tensor = torch.randn(shape)
        assert torch.equal(tensor, stage.upload(tensor, torch.float32).cpu())
        assert torch.equal(tensor.bfloat16(), stage.upload(tensor, torch.bfloat16).cpu())


def test_safetensors_come_to_the_card_unchanged(tmp_path) -> None:
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: torch.randn(shape, generator=generator).bfloat16() for name, shape in expected_shapes(SPEC).items()
    }
    save_file(weights, tmp_path / "model.safetensors")
    for name, tensor in SafetensorsWeights(tmp_path, SPEC).read(torch.bfloat16, CARD):
        assert tensor.device == CARD
        assert torch.equal(tensor.cpu(), weights[name])


def test_dummy_weights_are_made_on_the_card_repeatably() -> None:
    once, again = (dict(DummyWeights(SPEC, 5).read(torch.bfloat16, CARD)) for _ in range(2))
    assert {name: tuple(tensor.shape) for name, tensor in once.items()} == expected_shapes(SPEC)
    assert all(torch.equal(tensor, again[name]) and tensor.device == CARD for name, tensor in once.items())
    embedding = once["model.embed_tokens.weight"].float()
    assert embedding.std().item() == pytest.approx(1024**-0.5, rel=0.01)


def test_a_large_dummy_model_stands_within_seconds_and_holds_little_more_than_its_weights() -> None:
    device = CudaDevice()
    device.release_unused()
    if device.free_bytes() < 24 * 2**30:
        pytest.skip("needs 24 GiB")
    num_bytes = QWEN3_8B.num_parameters * 2
    decoder = Decoder(QWEN3_8B, torch.bfloat16, CARD)
    start = time.perf_counter()
    peak = device.measure_peak_bytes(lambda: decoder.load(DummyWeights(QWEN3_8B, 0).read(torch.bfloat16, CARD)))
    print(f"loaded {num_bytes / 2**30:.1f} GiB in {time.perf_counter() - start:.1f} s, peak {peak / num_bytes:.2f}")
    assert num_bytes <= peak < 1.15 * num_bytes


def test_a_steps_peak_and_a_positions_bytes_are_measured_and_steps_are_timed() -> None:
    device = CudaDevice()
    decoder = Decoder(SPEC, torch.bfloat16, CARD)
    decoder.load(DummyWeights(SPEC, 0).read(torch.bfloat16, CARD))
    kv = allocate_kv(SPEC, LIMITS.num_blocks, LIMITS.block_size, torch.bfloat16, CARD)
    assert measure_forward_peak(decoder, kv, device, LIMITS) > 1024 * 2 * 2816 * 2
    position_bytes = measure_position_bytes(decoder, kv, device, LIMITS)
    assert 4 * SPEC.vocab_size < position_bytes < 32 * SPEC.vocab_size + 2**17
    readings = measure_steps(eager_step(decoder, kv), device, LIMITS)
    assert {1, 32, 64} <= {shape.num_rows for shape, _ in readings}
    assert all(ms > 0 for _, ms in readings)
