"""Scales of an FP8 cache: as the checkpoint says, else large enough for all that a trial pass writes."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from threefold.kernels.kv import FP8
from threefold.layers.attention import allocate_kv
from threefold.models.checkpoint import Checkpoint
from threefold.models.decoder import Decoder
from threefold.models.kv_scales import KVScales
from threefold.models.shapes import expected_shapes
from threefold.models.spec import ModelSpec
from threefold.models.weights import DummyWeights
from threefold.runner import kv_scales
from threefold.runner.kv_scales import HEADROOM, measure_kv_scales, scale_kv

SPEC = ModelSpec("LlamaForCausalLM", 97, 32, 3, 2, 1, 16, 48, 128)
CPU = torch.device("cpu")
CHECKPOINT = Checkpoint(Path(), SPEC, "dummy", DummyWeights(SPEC, 0), {}, {})


def decoder(spread: float) -> Decoder:
    made = Decoder(SPEC, torch.float32, CPU)
    dice = torch.Generator().manual_seed(0)
    made.load((name, spread * torch.randn(shape, generator=dice)) for name, shape in expected_shapes(SPEC).items())
    return made


class Writes:
    """A model that writes given numbers into every cache."""

    def __init__(self, key: float, value: float) -> None:
        self.numbers = key, value

    def forward(self, batch, kv):
        assert batch.num_tokens == 128
        assert len(batch.token_ids.unique()) > 50
        for cache in kv:
            cache.keys.view(-1)[7], cache.values.view(-1)[9] = self.numbers


@pytest.mark.parametrize(
    ("peak", "scale"), [(112.0, 1.0), (-112.5, 2.0), (7.0, 2.0**-4), (448.0, 4.0), (0.0, 1.0), (math.nan, 1.0)]
)
def test_a_scale_is_the_power_of_two_that_leaves_headroom(device, peak, scale) -> None:
    found = measure_kv_scales(Writes(peak, 112.0), SPEC, torch.float32, device)

    assert [KVScales(scale, 1.0)] * 3 == found
    assert math.isnan(peak) or abs(peak) * HEADROOM <= 448 * scale


@pytest.mark.parametrize("spread", [0.02, 1.0, 30.0])
def test_a_real_pass_fits_into_what_was_measured(device, spread) -> None:
    model = decoder(spread)
    kv = allocate_kv(SPEC, 4, 16, FP8, CPU)

    scale_kv(kv, CHECKPOINT, model, torch.float32, device)

    scales = [(float(cache.key_scale), float(cache.value_scale)) for cache in kv]
    assert measure_kv_scales(model, SPEC, torch.float32, device) == scales
    assert all(math.frexp(number)[0] == 0.5 for pair in scales for number in pair)
    assert all(not cache.keys.float().any() for cache in kv), "the cache itself stays empty"


def test_the_checkpoints_scales_are_taken_as_they_are(device, monkeypatch) -> None:
    given = [KVScales(0.3, 0.7), KVScales(0.4, 0.8), KVScales(0.5, 0.9)]
    monkeypatch.setattr(kv_scales, "checkpoint_kv_scales", lambda source, num_layers: given[:num_layers])
    kv = allocate_kv(SPEC, 4, 16, FP8, CPU)

    scale_kv(kv, CHECKPOINT, SimpleNamespace(), torch.float32, device)

    found = [(float(cache.key_scale), float(cache.value_scale)) for cache in kv]
    assert found == [pytest.approx(tuple(pair)) for pair in given]


def test_a_cache_that_is_not_fp8_keeps_its_ones(device) -> None:
    kv = allocate_kv(SPEC, 4, 16, torch.bfloat16, CPU)

    scale_kv(kv, CHECKPOINT, SimpleNamespace(), torch.float32, device)

    assert all(1 == cache.key_scale == cache.value_scale for cache in kv)
