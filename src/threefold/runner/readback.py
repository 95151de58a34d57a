"""The way of a step's tokens back to the host, and the times of its work on the device.

On a card nothing waits until a result is wanted: the copy and the marks around a step's work are queued behind it. On
a CPU the work is done when it returns. Knows nothing about rows or sampling.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from threefold.sample.sampler import Likely


class Arrived(NamedTuple):
    """What came back of a step."""

    tokens: npt.NDArray[np.int64]
    """[num_positions]."""
    values: npt.NDArray[np.float32]
    """[num_positions] largest logits; valid until two more steps are launched."""
    forward_ms: float
    """From the step's first operation to its last token."""
    idle_ms: float
    """The device's rest between the step before and this one; 0 where it is not known."""
    behind_ms: float = 0.0
    """The device's work behind the step before, such as drafting for this one."""


class Pending(Protocol):
    """A step's tokens on their way."""

    def wait(self) -> Arrived:
        """Wait for them."""


class Readback(Protocol):
    """Brings tokens back, a step at a time."""

    def begin(self) -> None:
        """A step's work starts here."""

    def send(self, likely: Likely | None, num_positions: int) -> Pending:
        """The step's work is all launched; None = no row wants a token."""

    def end_behind(self) -> None:
        """More was launched behind the step sent last, and that is all of it."""


class HostReadback:
    """Where tensors are host memory."""

    def __init__(self) -> None:
        self._began_s = 0.0

    def begin(self) -> None:
        """Look at the clock."""
        self._began_s = time.perf_counter()

    def send(self, likely: Likely | None, num_positions: int) -> Pending:
        """The tokens are there."""
        ms = (time.perf_counter() - self._began_s) * 1000
        if likely is None:
            return _There(Arrived(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32), ms, 0.0))
        tokens, values = likely.tokens[:num_positions].numpy(), likely.values[:num_positions].numpy()
        return _There(Arrived(tokens, values, ms, 0.0))

    def end_behind(self) -> None:
        """What is launched is done."""


class _There(NamedTuple):
    arrived: Arrived

    def wait(self) -> Arrived:
        return self.arrived


class Mark(Protocol):
    """A place in the device's queue of work; torch.Event is one."""

    def record(self) -> None:
        """Put it behind all work launched so far."""

    def synchronize(self) -> None:
        """Wait until the device has come there."""

    def elapsed_time(self, other: Any, /) -> float:
        """Milliseconds from here to another mark, once both are reached."""


class StreamReadback:
    """Where a device works through a queue.

    Args:
        max_positions: most tokens a step.
        device: whose tokens come back.
        make_mark: gives a mark that knows times.
    """

    def __init__(self, max_positions: int, device: torch.device, make_mark: Callable[[], Mark]) -> None:
        is_pinned = device.type != "cpu"
        self._buffers = [torch.empty(2 * max_positions, dtype=torch.int32, pin_memory=is_pinned) for _ in range(2)]
        self._rooms: dict[tuple[int, int], _Room] = {}
        # Beginning, end, and end of what stands behind: of two steps in flight and the one before.
        self._marks = [(make_mark(), make_mark(), make_mark()) for _ in range(3)]
        self._has_behind = False
        self._turn = 0

    def begin(self) -> None:
        """Mark the beginning."""
        self._marks[self._turn % 3][0].record()

    def send(self, likely: Likely | None, num_positions: int) -> Pending:
        """Queue the copy and mark the end."""
        begin, end, _ = self._marks[self._turn % 3]
        before = None
        if self._turn:
            _, end_before, behind = self._marks[(self._turn - 1) % 3]
            before = end_before, behind if self._has_behind else end_before
        self._has_behind = False
        if likely is None:
            room = self._room(0)
        else:
            packed = likely.packed if likely.packed is not None else pack(likely)
            room = self._room(packed.shape[1])
            room.packed.copy_(packed, non_blocking=True)
        end.record()
        self._turn += 1
        return _Queued(room, num_positions, begin, end, before)

    def end_behind(self) -> None:
        """Mark it."""
        self._marks[(self._turn - 1) % 3][2].record()
        self._has_behind = True

    def _room(self, num_positions: int) -> _Room:
        key = self._turn % 2, num_positions
        room = self._rooms.get(key)
        if room is None:
            packed = self._buffers[key[0]][: 2 * num_positions].view(2, num_positions)
            tokens, values = packed.numpy()
            room = self._rooms[key] = _Room(packed, tokens, values.view(np.float32))
        return room


class _Room(NamedTuple):
    """Where so many positions are put in one of the buffers."""

    packed: torch.Tensor  # [2, num_positions] int32
    tokens: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]


class _Queued(NamedTuple):
    room: _Room
    num_positions: int
    begin: Mark
    end: Mark
    before: tuple[Mark, Mark] | None  # where the step before ended, and what stood behind it

    def wait(self) -> Arrived:
        self.end.synchronize()
        num = self.num_positions
        tokens, values = self.room.tokens[:num].astype(np.int64), self.room.values[:num]
        idle_ms = behind_ms = 0.0
        if self.before is not None:
            ended, rested = self.before
            idle_ms = max(rested.elapsed_time(self.begin), 0.0)
            behind_ms = 0.0 if rested is ended else ended.elapsed_time(rested)
        forward_ms = self.begin.elapsed_time(self.end)
        return Arrived(tokens, values, forward_ms, idle_ms, behind_ms)


def pack(likely: Likely) -> torch.Tensor:
    """Tokens and values side by side, [2, num_positions] int32; device work only."""
    return torch.stack((likely.tokens.int(), likely.values.view(torch.int32)))
