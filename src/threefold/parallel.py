"""The tensor-parallel group: how the ranks that hold one model's shards sum and gather.

Knows nothing about layers. A group of one runs the same code as a group of many; its collectives change nothing.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist

from threefold.errors import ConfigError


class Group(Protocol):
    """Ranks that hold one model together."""

    rank: int
    size: int

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks; the tensor may be overwritten."""

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The ranks' tensors side by side along the last dimension, in the order of the ranks."""


class SingleGroup:
    """A group of one."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself."""
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself."""
        return tensor


def single_group() -> Group:
    """A group of one."""
    return SingleGroup()


class DistributedGroup:
    """A group over torch.distributed: nccl on GPUs, gloo on CPUs."""

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        self._process_group = process_group
        self.rank = dist.get_rank(process_group)
        self.size = dist.get_world_size(process_group)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, in place."""
        dist.all_reduce(tensor, group=self._process_group)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The ranks' tensors side by side along the last dimension."""
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor, group=self._process_group)
        return torch.cat(parts, dim=-1)


def shard(total: int, group: Group, what: str) -> int:
    """This rank's share of a dimension.

    Args:
        total: its whole size.
        group: the ranks.
        what: the dimension's name, for the message.

    Raises:
        ConfigError: it cannot be divided evenly.
    """
    if total % group.size:
        raise ConfigError(f"tensor_parallel_size {group.size} does not divide the model's {what}, {total}")
    return total // group.size
