"""What the compiled bodies can serve, and what goes to the references."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.bodies import is_native

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("device", "dtype", "widths", "expected"),
    [
        (CPU, torch.float32, (16,), True),
        (CPU, torch.bfloat16, (576, 64), True),
        (CPU, torch.float16, (16,), False),
        (CPU, torch.float32, (576, 24), False),
        (torch.device("meta"), torch.float32, (16,), False),
    ],
)
def test_is_native(device: torch.device, dtype: torch.dtype, widths: tuple[int, ...], expected: bool) -> None:
    assert expected == is_native(device, dtype, *widths)
