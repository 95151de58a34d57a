"""Two ranks in one process: each layer is run rank by rank, and the group's collectives are worked out between them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch


class PretendGroup:
    """A rank whose collectives give its own part back; the test sums or joins the parts of all ranks."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


@pytest.fixture
def ranks() -> Callable[[int], list[PretendGroup]]:
    return lambda size: [PretendGroup(rank, size) for rank in range(size)]
