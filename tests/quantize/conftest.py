"""Models to quantise; tests/conftest.py makes them."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tiny tensors: a second thread costs more than it gives on a busy machine."""
    torch.set_num_threads(1)
