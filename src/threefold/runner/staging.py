"""All of a step's integers in one buffer, so that they reach the card in one copy.

    int32   [ token_ids | positions | slots | logit_tokens | keep_rows | row_starts | context_lens | row_ids | growth ]
              T           T           T       L              L           R + 1        R              R         3 G

Each part begins at a multiple of 16 bytes, whatever the shape: a kernel compiled for aligned pointers serves all steps.
The sizes are those of a shape, and what a step does not fill is padding as captured graphs want it: tokens without a
slot, rows without tokens. Growth is what the step's rows were given of blocks, places (int64) before blocks: it is
written into the device's tables before anything else. Every view of a buffer is made once a shape. Knows nothing about
models or graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from threefold.runner.inputs import StepArrays
from threefold.runner.loops import stage
from threefold.runner.rows import Growth

NUM_BUFFERS = 2
"""Host buffers in turn: one may still be on its way up for the step in flight while the next is filled."""

ALIGNED_INTS = 4
MAX_GROWN = 1 << 14
"""Room for blocks that a step's rows are given; more of them go up by themselves."""
LEAST_GROWN = 4
"""Growth is filled up to this or twice it, four times it …, so that there are few shapes of it."""
MAX_ROOMS = 1024
"""Shapes whose views are kept at a time: more than there are graphs; steps without one may have any shape."""


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

    def longs(self, wide: torch.Tensor) -> LongViews:
        """The parts of the wide part as int64."""
        tokens, _, logits = self.shape
        parts = wide.split_with_sizes(self.shape.wide_rooms)
        sizes = (tokens, tokens, tokens, logits, logits)
        return LongViews(*(part[:size] for part, size in zip(parts, sizes, strict=True)))


class _Room(NamedTuple):
    """A shape's place in one of the host's buffers and on the device, with that of its growth behind it."""

    sizes: npt.NDArray[np.int64]  # what loops.stage takes for rooms
    sent: torch.Tensor
    received: torch.Tensor
    host_places: npt.NDArray[np.int64]
    host_block_ids: npt.NDArray[np.int32]
    places: torch.Tensor
    block_ids: torch.Tensor


class Staging:
    """The buffers, and how a step is written into them.

    Args:
        max_tokens: most tokens a step, padding included; the logits are no more.
        max_rows: most rows a step.
        device: where the step runs.
    """

    def __init__(self, max_tokens: int, max_rows: int, device: torch.device) -> None:
        self._max_rows = max_rows
        room = StagedShape(max_tokens, self._max_rows, max_tokens).num_ints + 3 * MAX_GROWN
        is_pinned = device.type != "cpu"
        self._device_buffer = torch.zeros(room, dtype=torch.int32, device=device)
        self._host_buffers = [torch.zeros(room, dtype=torch.int32, pin_memory=is_pinned) for _ in range(NUM_BUFFERS)]
        self._host_arrays = [buffer.numpy() for buffer in self._host_buffers]
        self._rooms: dict[tuple[int, StagedShape, int], _Room] = {}
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
        growth = arrays.growth
        num_grown = len(growth.places)
        if num_grown > MAX_GROWN:
            grow(*self._apart(growth))
            num_grown = 0
        room = self._room(shape, _filled_up(num_grown))
        self._fill(room.sizes, arrays)
        if num_grown:
            num_more = len(room.host_places) - num_grown  # what fills it up says the first entry again
            room.host_places[:] = growth.places + growth.places[:1] * num_more
            room.host_block_ids[:] = growth.block_ids + growth.block_ids[:1] * num_more
        room.received.copy_(room.sent, non_blocking=True)
        if num_grown:
            grow(room.places, room.block_ids)

    def put_padding(self, shape: StagedShape) -> None:
        """A step of padding alone: it reads and writes nothing."""
        nothing = np.empty(0, dtype=np.int64)
        tokens = (nothing,) * 3
        ends = np.zeros(1, dtype=np.int64)
        arrays = StepArrays(*tokens, nothing, ends, nothing, nothing, nothing, 0, 0, False, Growth([], []))
        self.put(arrays, shape, lambda _places, _block_ids: None)

    def _apart(self, growth: Growth) -> tuple[torch.Tensor, torch.Tensor]:
        device = self._device_buffer.device
        return torch.tensor(growth.places, device=device), torch.tensor(
            growth.block_ids, dtype=torch.int32, device=device
        )

    def _fill(self, sizes: npt.NDArray[np.int64], arrays: StepArrays) -> None:
        stage(
            self._host_arrays[self._turn],
            sizes,
            self._max_rows,
            arrays.token_ids,
            arrays.positions,
            arrays.slots,
            arrays.logit_tokens,
            arrays.keep_rows,
            arrays.row_starts,
            arrays.context_lens,
            arrays.row_ids,
        )

    def _room(self, shape: StagedShape, num_grown: int) -> _Room:
        key = self._turn, shape, num_grown
        room = self._rooms.get(key)
        if room is None:
            if len(self._rooms) == MAX_ROOMS:
                self._rooms.clear()
            room = self._rooms[key] = self._make_room(*key)
        return room

    def _make_room(self, turn: int, shape: StagedShape, num_grown: int) -> _Room:
        start = shape.num_ints
        middle, end = start + 2 * num_grown, start + 3 * num_grown
        host, device = self._host_arrays[turn], self._device_buffer
        sizes = [shape.wide_rooms[0], shape.wide_rooms[-1], *shape.row_rooms[:2]]
        return _Room(
            np.array(sizes, dtype=np.int64),
            self._host_buffers[turn][:end],
            device[:end],
            host[start:middle].view(np.int64),
            host[middle:end],
            device[start:middle].view(torch.int64),
            device[middle:end],
        )


def _filled_up(num_grown: int) -> int:
    return max(LEAST_GROWN, 1 << (num_grown - 1).bit_length()) if num_grown else 0


def _aligned(num_ints: int) -> int:
    return -(-num_ints // ALIGNED_INTS) * ALIGNED_INTS
