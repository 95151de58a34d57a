"""All of a step's integers in one buffer, so that they reach the card in one copy.

    int32   [ token_ids | positions | slots | logit_tokens | keep_rows | row_starts | context_lens | row_ids | growth ]
              T           T           T       L              L           R + 1        R              R         2 G

Each part begins at a multiple of 16 bytes, whatever the shape: a kernel compiled for aligned pointers serves all steps.
The sizes are those of a shape, and what a step does not fill is padding as captured graphs want it: tokens without a
slot, rows without tokens. Growth is what the step's rows were given of blocks: it is written into the device's tables
before anything else. Knows nothing about models or graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from threefold.runner.inputs import StepArrays
from threefold.runner.rows import Growth

NUM_BUFFERS = 2
"""Host buffers in turn: one may still be on its way up for the step in flight while the next is filled."""

ALIGNED_INTS = 4
MAX_GROWN = 1 << 14
"""Room for blocks that a step's rows are given; more of them go up by themselves."""


class StagedShape(NamedTuple):
    """How much room a step's arrays are given."""

    num_tokens: int
    num_rows: int
    num_logits: int

    @property
    def num_ints(self) -> int:
        """Room in all, but for growth."""
        return self.num_wide + sum(self.row_rooms)

    @property
    def wide_rooms(self) -> list[int]:
        """Room for each part that the layers want as int64."""
        return [_aligned(self.num_tokens)] * 3 + [_aligned(self.num_logits)] * 2

    @property
    def row_rooms(self) -> list[int]:
        """Room for each of the other parts."""
        return [_aligned(self.num_rows + 1), _aligned(self.num_rows), _aligned(self.num_rows)]

    @property
    def num_wide(self) -> int:
        """Where the parts about rows begin."""
        return sum(self.wide_rooms)


class LongViews(NamedTuple):
    """What the layers want as int64."""

    token_ids: torch.Tensor  # [num_tokens]
    positions: torch.Tensor  # [num_tokens]
    slots: torch.Tensor  # [num_tokens]
    logit_tokens: torch.Tensor  # [num_logits]
    keep_rows: torch.Tensor  # [num_logits]


class StagedViews(NamedTuple):
    """A shape's parts of the device's buffer; they do not move from step to step."""

    shape: StagedShape
    wide: torch.Tensor  # [num_wide] int32, what becomes LongViews
    row_starts: torch.Tensor  # [num_rows + 1] int32
    context_lens: torch.Tensor  # [num_rows] int32
    row_ids: torch.Tensor  # [num_rows] int32

    def longs(self) -> LongViews:
        """The wide part as int64; one operation on the device."""
        tokens, _, logits = self.shape
        parts = self.wide.long().split_with_sizes(self.shape.wide_rooms)
        sizes = (tokens, tokens, tokens, logits, logits)
        return LongViews(*(part[:size] for part, size in zip(parts, sizes, strict=True)))


class Staging:
    """The buffers, and how a step is written into them.

    Args:
        max_tokens: most tokens a step, padding included; the logits are no more.
        max_rows: most rows a step.
        device: where the step runs.
    """

    def __init__(self, max_tokens: int, max_rows: int, device: torch.device) -> None:
        self._max_rows = max_rows
        room = StagedShape(max_tokens, self._max_rows, max_tokens).num_ints + 2 * MAX_GROWN
        is_pinned = device.type != "cpu"
        self._device_buffer = torch.zeros(room, dtype=torch.int32, device=device)
        self._host_buffers = [torch.zeros(room, dtype=torch.int32, pin_memory=is_pinned) for _ in range(NUM_BUFFERS)]
        self._host_arrays = [buffer.numpy() for buffer in self._host_buffers]
        self._turn = 0

    def views(self, shape: StagedShape) -> StagedViews:
        """Where a shape's arrays lie on the device."""
        wide, others = self._device_buffer[: shape.num_ints].split_with_sizes([shape.num_wide, sum(shape.row_rooms)])
        row_starts, context_lens, row_ids = others.split_with_sizes(shape.row_rooms)
        num_rows = shape.num_rows
        return StagedViews(shape, wide, row_starts[: num_rows + 1], context_lens[:num_rows], row_ids[:num_rows])

    def put(self, arrays: StepArrays, shape: StagedShape, grow: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        """Send a step up, padded to the shape; all steps launched before keep what they were sent.

        Args:
            arrays: the step.
            shape: at least as large.
            grow: writes the device's block tables, given places and block ids.
        """
        self._turn = (self._turn + 1) % NUM_BUFFERS
        host, start = self._host_arrays[self._turn], shape.num_ints
        self._fill(host, arrays, shape)
        growth = arrays.growth
        num_grown = len(growth.places)
        if num_grown > MAX_GROWN:
            grow(*self._apart(growth))
            num_grown = 0
        end = start + 2 * num_grown
        if num_grown:
            host[start : start + num_grown] = growth.places
            host[start + num_grown : end] = growth.block_ids
        self._device_buffer[:end].copy_(self._host_buffers[self._turn][:end], non_blocking=True)
        if num_grown:
            places, block_ids = self._device_buffer[start:end].chunk(2)
            grow(places.long(), block_ids)

    def put_padding(self, shape: StagedShape) -> None:
        """A step of padding alone: it reads and writes nothing."""
        nothing = np.empty(0, dtype=np.int64)
        tokens = (nothing,) * 3
        ends = np.zeros(1, dtype=np.int64)
        arrays = StepArrays(*tokens, nothing, ends, nothing, nothing, nothing, 0, 0, False, Growth([], []))
        self._turn = (self._turn + 1) % NUM_BUFFERS
        self._fill(self._host_arrays[self._turn], arrays, shape)
        self._device_buffer[: shape.num_ints].copy_(self._host_buffers[self._turn][: shape.num_ints])

    def _apart(self, growth: Growth) -> tuple[torch.Tensor, torch.Tensor]:
        device = self._device_buffer.device
        return torch.tensor(growth.places, device=device), torch.tensor(
            growth.block_ids, dtype=torch.int32, device=device
        )

    def _fill(self, host: npt.NDArray[np.int32], arrays: StepArrays, shape: StagedShape) -> None:
        wide_padding = (0, 0, -1, 0, self._max_rows)
        wide = (arrays.token_ids, arrays.positions, arrays.slots, arrays.logit_tokens, arrays.keep_rows)
        row_padding = (len(arrays.token_ids), 0, 0)
        of_rows = (arrays.row_starts, arrays.context_lens, arrays.row_ids)
        start = 0
        for array, room, padding in (
            *zip(wide, shape.wide_rooms, wide_padding, strict=True),
            *zip(of_rows, shape.row_rooms, row_padding, strict=True),
        ):
            end = start + len(array)
            host[start:end] = array
            host[end : start + room] = padding
            start += room


def _aligned(num_ints: int) -> int:
    return -(-num_ints // ALIGNED_INTS) * ALIGNED_INTS
