"""Compiles bodies and runs them on the threads that torch's own products use.

Knows nothing about what a body does. A body is `body(args)`, args being the address of int64 numbers:

    args    [ next item to take | number of items | the body's own arguments ... ]

Every thread runs the same body and takes items until there are none, so rows of uneven length balance themselves.
Torch's Linux build brings GNU OpenMP; a region opened in the same runtime by the same thread is joined by the same
waiting workers, so a fork costs 1 to 2 µs and no second pool competes for the cores. Without it, bodies run on the
calling thread. chain.py runs many bodies in one fork.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from numba import cfunc
from numba.core import types

FIRST_ARG = 2  # index of a body's first own argument

Body = Callable[[int], None]

_ADDRESS = ctypes.c_void_p


class Team(NamedTuple):
    """What the OpenMP runtime that torch has loaded, and the system, do for bodies."""

    fork: Callable[..., None]
    """`GOMP_parallel(function, data, num_threads, flags)`."""
    make_bed: Callable[[int], None]
    """Makes a semaphore of zero at an address, of 32 bytes or less, on which threads sleep."""
    sleep_address: int
    """Of the C function `int sleep(bed)`, which returns after somebody has called the next one; or sooner."""
    wake_address: int
    """Of `int wake(bed)`, which wakes one thread, or the next one that would sleep."""


@cache
def fingerprint() -> int:
    """A number that changes with any file of this room; bodies close over it: none comes stale out of a cache."""
    checksum = 0
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        checksum = zlib.crc32(path.read_bytes(), checksum)
    return checksum


@cache
def find_team() -> Team | None:
    """Torch's threads; None where they are not to be had."""
    if "OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        # PyDLL keeps the interpreter lock: bodies are short, and taking the lock back can cost a switch interval.
        fork, system = ctypes.PyDLL("libgomp.so.1").GOMP_parallel, ctypes.PyDLL(None)
        make, sleep, wake = system.sem_init, system.sem_wait, system.sem_post
    except (OSError, AttributeError):
        return None
    fork.argtypes = (_ADDRESS, _ADDRESS, ctypes.c_uint, ctypes.c_uint)
    fork.restype = None
    make.argtypes = (_ADDRESS, ctypes.c_int, ctypes.c_uint)
    return Team(fork, lambda address: make(address, 0, 0), _address_of(sleep), _address_of(wake))


def _address_of(function: object) -> int:
    address = ctypes.cast(function, _ADDRESS).value  # type: ignore[arg-type]
    assert address is not None, "a function that was found has an address"
    return address


class Run:
    """A body, compiled or loaded compiled from numba's cache: `run(num_items, *args)` on all of torch's threads, done
    when it returns; a single item runs on the caller's.

    Args:
        body: see the module's head; closes over numbers only.
        num_args: its own arguments, all int64.
    """

    def __init__(self, body: Body, num_args: int) -> None:
        self._compiled = cfunc(types.void(types.int64), cache=True)(body)  # held: it owns the machine code
        self._frame = ctypes.c_int64 * (FIRST_ARG + num_args)
        self._alone = ctypes.PYFUNCTYPE(None, _ADDRESS)(self._compiled.address)
        self._team = find_team()
        self.address: int = self._compiled.address
        """Of the machine code, `void body(int64 args)`."""
        self.num_args = num_args

    def __call__(self, num_items: int, *args: int) -> None:
        """Do so many items."""
        if num_items > 1 and self._team is not None:
            self._team.fork(self.address, self._frame(0, num_items, *args), torch.get_num_threads(), 0)
        else:
            self._alone(self._frame(0, num_items, *args))
