"""The norm layer: its weight, and what does not fit."""

from __future__ import annotations

import pytest
import torch

from threefold.errors import ModelLoadError
from threefold.kernels.norm import rms_norm_reference
from threefold.layers.norm import RMSNorm


@pytest.mark.parametrize("width", [32, 20])
def test_the_loaded_weight_is_used(width: int) -> None:
    torch.manual_seed(0)
    norm = RMSNorm(width, 1e-5, torch.float32, torch.device("cpu"))
    assert not norm.is_loaded
    weight, x = torch.randn(width), torch.randn(3, width)

    norm.load(weight)

    assert norm.is_loaded
    torch.testing.assert_close(norm(x), rms_norm_reference(x, None, weight, 1e-5))


def test_a_wrong_shape_is_refused() -> None:
    norm = RMSNorm(32, 1e-5, torch.float32, torch.device("cpu"))

    with pytest.raises(ModelLoadError, match=r"\[31\], the model needs \[32\]"):
        norm.load(torch.ones(31))
    assert not norm.is_loaded
