"""Tensors to safetensors files of a bounded size, one after another, with an index where there are several.

Only one file's tensors are held at a time. Knows nothing about what the tensors mean.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from threefold.errors import ConfigError
from threefold.models.weights import INDEX_FILE, SINGLE_FILE

MAX_SHARD_BYTES = 2 << 30
_READABLE = 0o644
"""The library makes files that only their owner may read; a server may run as somebody else."""


class ShardWriter:
    """Writes a folder's weights.

    Args:
        folder: exists.
        max_bytes: most that a file holds, but for a single larger tensor.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_SHARD_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._held: dict[str, torch.Tensor] = {}
        self._held_bytes = 0
        self._shards: list[list[str]] = []
        self._total_bytes = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Take a tensor, on the CPU.

        Raises:
            ConfigError: the folder cannot be written.
        """
        if self._held and self._held_bytes + tensor.nbytes > self._max_bytes:
            self._write()
        self._held[name] = tensor.contiguous()
        self._held_bytes += tensor.nbytes

    def finish(self) -> int:
        """Write what is left and the index; returns the bytes of all tensors.

        Raises:
            ConfigError: the folder cannot be written.
        """
        self._write()
        num = len(self._shards)
        if num == 1:
            self._path(1).rename(self._folder / SINGLE_FILE)
            return self._total_bytes
        places: dict[str, str] = {}
        for index, names in enumerate(self._shards, start=1):
            path = self._path(index)
            final = path.with_name(f"model-{index:05d}-of-{num:05d}.safetensors")
            path.rename(final)
            places.update(dict.fromkeys(names, final.name))
        table = {"metadata": {"total_size": self._total_bytes}, "weight_map": places}
        (self._folder / INDEX_FILE).write_text(json.dumps(table, indent=1), encoding="utf-8")
        return self._total_bytes

    def _write(self) -> None:
        path = self._path(len(self._shards) + 1)
        try:
            save_file(self._held, path, metadata={"format": "pt"})
            path.chmod(_READABLE)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{path}: cannot write it: {error}") from None
        self._shards.append(list(self._held))
        self._total_bytes += self._held_bytes
        self._held, self._held_bytes = {}, 0

    def _path(self, index: int) -> Path:
        return self._folder / f"part-{index:05d}.safetensors"
