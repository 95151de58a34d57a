"""Kernels that begin before the one ahead has ended give, bit for bit, what ordinary launches give."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.kv import FP8
from threefold.kernels.triton import launch
from threefold.kernels.triton.product import few_tokens_body
from threefold.kernels.triton.tables import ProductSizes
from threefold.layers.attention import allocate_kv
from threefold.models.decoder import Decoder
from threefold.models.spec import ModelSpec
from threefold.models.weights import DummyWeights
from threefold.runner.calibrate import CalibrationLimits, made_up_batch
from threefold.runner.graphs import CudaCapture

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]
CARD = torch.device("cuda", 0)
SPEC = ModelSpec("Qwen3ForCausalLM", 2000, 1024, 6, 16, 8, 128, 3072, 4096, has_qk_norm=True, has_tied_head=True)
LIMITS = CalibrationLimits(1024, 16, 64, 4096, 4096)
REPLAYS = 100


@pytest.fixture(autouse=True)
def _hopper() -> None:
    if not launch.can_overlap(CARD):
        pytest.skip("needs compute capability 9")


def decoder() -> Decoder:
    made = Decoder(SPEC, torch.bfloat16, CARD)
    made.load(DummyWeights(SPEC, 1).read(torch.bfloat16, CARD))
    return made


@pytest.fixture(scope="module")
def both():
    """A decoder with overlapped launches, and one of the same weights without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "can_overlap", lambda _: False)
        ordinary = decoder()
    return decoder(), ordinary


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, FP8])
@pytest.mark.parametrize(
    ("num_rows", "num_new", "context"), [(1, 1, 700), (5, 3, 300), (32, 1, 90), (64, 1, 200), (1, 600, 600)]
)
@torch.inference_mode()
def test_a_steps_logits_are_the_same_bits(both, kv_dtype, num_rows, num_new, context) -> None:
    batch = made_up_batch(num_rows, num_new, context, LIMITS, CARD)
    found = []
    for model in both:
        kv = allocate_kv(SPEC, LIMITS.num_blocks, LIMITS.block_size, kv_dtype, CARD)
        for layer in kv:
            for part, seed in ((layer.keys, 1), (layer.values, 2)):
                dice = torch.Generator(CARD).manual_seed(seed)
                part.copy_(torch.randn(part.shape, generator=dice, device=CARD))
        found.append((model, kv, model.logits(model.forward(batch, kv)).clone()))
    (model, kv, early), (_, _, expected) = found
    assert torch.equal(early, expected)

    if num_new > 17:
        return
    out = torch.empty_like(expected)
    capture = CudaCapture(CARD)
    replay = capture(lambda: out.copy_(model.logits(model.forward(batch, kv))))
    for _ in range(REPLAYS):
        out.zero_()
        replay()
        assert torch.equal(out, expected)


@pytest.mark.parametrize("shape", [(6144, 4096), (24576, 4096), (50, 584), (48, 577)])
@pytest.mark.parametrize("ahead_bytes", [0, 4096, 1 << 20])
def test_a_product_whatever_is_brought_near(shape, ahead_bytes) -> None:
    """Also where that is more than there is, and where rows begin at odd addresses."""
    torch.manual_seed(0)
    weight = torch.randn(shape, device=CARD).bfloat16()
    first, x = torch.randn((2, 3, shape[1]), device=CARD).bfloat16()
    for is_gated in (False, True):
        sizes = ProductSizes(32, 128, 4, 3) if is_gated else ProductSizes(16, 256, 2, 4)
        plain = few_tokens_body(weight, None, sizes, is_gated=is_gated)
        early = few_tokens_body(weight, None, sizes, is_gated=is_gated, overlaps=True, ahead_bytes=ahead_bytes)
        expected = plain(first + x)
        for _ in range(20):
            assert torch.equal(early(first + x), expected)
