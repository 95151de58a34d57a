"""Bodies one behind another in one fork: each begins when all that the one before it had to do is done.

Threads meet between two bodies instead of going home, and Python is called once for all of them: a link costs a
fraction of a microsecond, where a call of its own costs ten. Threads wait for work, not for each other: one that has no
core, while others use the machine, holds nobody up unless it is in the middle of something, and who waits long sleeps.
Knows nothing about what bodies do.

    links    [num_links]         int64   addresses of bodies
    rows     [num_links, words]  int64   [ threads inside | a body's arguments as team.py has them ]
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from threefold.kernels.native import vector
from threefold.kernels.native.team import FIRST_ARG, Run, find_team, fingerprint
from threefold.kernels.native.vector import inlined, peek_i64

Words = npt.NDArray[np.int64]

_LINE_WORDS = 8  # of a cache line; rows begin with one each, since threads count in them
_ASLEEP, _BED = 64, 128  # bytes from the arguments to the number of sleepers, and to their semaphore
_MOST_PAUSES = 1000
"""After so many, about 20 µs, a thread that waits goes to sleep: what it waits for may need its core."""


@inlined
def _wait(inside: int, asleep: int, bed: int, sleep: int) -> None:
    """Until no thread is inside."""
    num_pauses = 0
    while vector.peek_shared(inside) != 0:
        num_pauses += 1
        if num_pauses < _MOST_PAUSES:
            vector.pause()
            continue
        vector.add_shared(asleep, 1)
        if vector.peek_shared(inside) != 0:  # else whoever left last may not have seen this thread
            vector.call_with(sleep, bed)


@inlined
def _wake(asleep: int, bed: int, wake: int) -> None:
    """All that sleep; one too many wakes somebody else, who looks and sleeps on."""
    if vector.peek_shared(asleep) != 0:
        for _ in range(vector.take_shared(asleep)):
            vector.call_with(wake, bed)


@cache
def _chain_body() -> Run:
    """Not a body of items: args are [-, links, link addresses, rows, bytes of a row, sleep, wake]."""
    source = fingerprint()

    def body(args: int) -> None:
        _ = source
        num_links, links, row, row_bytes = (
            peek_i64(args + 8),
            peek_i64(args + 16),
            peek_i64(args + 24),
            peek_i64(args + 32),
        )
        sleep, wake, asleep, bed = peek_i64(args + 40), peek_i64(args + 48), args + _ASLEEP, args + _BED
        for i in range(num_links):
            vector.add_shared(row, 1)
            vector.call_body(peek_i64(links + 8 * i), row + 8)
            if vector.add_shared(row, -1) == 1:
                _wake(asleep, bed, wake)
            elif i + 1 < num_links:
                _wait(row, asleep, bed, sleep)
            row += row_bytes

    return Run(body, 5)


class Chain:
    """Compiled bodies, run in order on all of torch's threads.

    Args:
        bodies: of the links; one may come several times.

    Attributes:
        frames: [num_links, words] int64, each row a body's arguments as team.py has them. The first number of each is
            this class's; the rest is the caller's to fill in before a run.
    """

    def __init__(self, bodies: Sequence[Run]) -> None:
        self._bodies = list(bodies)  # held, because links are addresses
        self._driver = _chain_body()
        self._links = np.array([body.address for body in bodies], dtype=np.int64)
        num_words = 1 + max(FIRST_ARG + body.num_args for body in bodies)
        rows = _aligned(len(bodies), -(-num_words // _LINE_WORDS) * _LINE_WORDS)
        self.frames = rows[:, 1:]
        self._counters = rows[:, :2]
        self._team = find_team()
        self._args = _aligned(3, _LINE_WORDS)
        self._args[0, 1:5] = len(bodies), self._links.ctypes.data, rows.ctypes.data, rows.strides[0]
        self._args_address = self._args.ctypes.data
        self._alone = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(self._driver.address)
        if self._team is not None:
            self._args[0, 5:7] = self._team.sleep_address, self._team.wake_address
            self._team.make_bed(self._args_address + _BED)

    def run(self) -> None:
        """Run all bodies on their frames; done when it returns."""
        self._counters[:] = 0
        if self._team is None:
            self._alone(self._args_address)
        else:
            self._team.fork(self._driver.address, self._args_address, torch.get_num_threads(), 0)


def _aligned(num_rows: int, num_words: int) -> Words:
    """Zeros, rows on cache lines' starts."""
    memory = np.zeros(num_rows * num_words + _LINE_WORDS, dtype=np.int64)
    start = -memory.ctypes.data % (8 * _LINE_WORDS) // 8
    return memory[start : start + num_rows * num_words].reshape(num_rows, num_words)
