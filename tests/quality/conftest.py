"""Models to compare; tests/conftest.py makes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from threefold.config import EngineConfig, ModelConfig


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tiny tensors: a second thread costs more than it gives on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture
def config_of() -> Callable[..., EngineConfig]:
    return lambda folder, **more: EngineConfig(model=ModelConfig(model=str(folder), **{"dtype": "float32"} | more))
