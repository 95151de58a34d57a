"""Compiles bodies and runs them on the threads that torch's own products use.

Knows nothing about what a body does. A body is `body(args)`, args being the address of int64 numbers:

    args    [ next item to take | number of items | the body's own arguments ... ]

Every thread runs the same body and takes items until there are none, so rows of uneven length balance themselves.
Torch's Linux build brings GNU OpenMP; a region opened in the same runtime by the same thread is joined by the same
waiting workers, so a fork costs 1 to 2 µs and no second pool competes for the cores. Without it, bodies run on the
calling thread.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from numba import cfunc
from numba.core import types

FIRST_ARG = 2  # index of a body's first own argument

Body = Callable[[int], None]
Run = Callable[..., None]

_ADDRESS = ctypes.c_void_p


@cache
def fingerprint() -> int:
    """A number that changes with any file of this room; bodies close over it: none comes stale out of a cache."""
    checksum = 0
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        checksum = zlib.crc32(path.read_bytes(), checksum)
    return checksum


@cache
def _fork() -> Callable[..., None] | None:
    """OpenMP's `GOMP_parallel(function, data, num_threads, flags)` in the runtime that torch has loaded."""
    if "OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        # PyDLL keeps the interpreter lock: bodies are short, and taking the lock back can cost a switch interval.
        fork = ctypes.PyDLL("libgomp.so.1").GOMP_parallel
    except (OSError, AttributeError):
        return None
    fork.argtypes = (_ADDRESS, _ADDRESS, ctypes.c_uint, ctypes.c_uint)
    fork.restype = None
    return fork


def compile_body(body: Body, num_args: int) -> Run:
    """Compile a body, or load it compiled from numba's cache.

    Args:
        body: see the module's head; closes over numbers only.
        num_args: its own arguments, all int64.

    Returns:
        `run(num_items, *args)` on all of torch's threads, done when it returns; a single item runs on the caller's.
    """
    # Kept alive by `run`, which calls into its machine code.
    compiled = cfunc(types.void(types.int64), cache=True)(body)
    frame = ctypes.c_int64 * (FIRST_ARG + num_args)
    alone = ctypes.PYFUNCTYPE(None, _ADDRESS)(compiled.address)
    fork = _fork()

    def run(num_items: int, *args: int) -> None:
        if num_items > 1 and fork is not None:
            fork(compiled.address, frame(0, num_items, *args), torch.get_num_threads(), 0)
        else:
            alone(frame(0, num_items, *args))

    return run
