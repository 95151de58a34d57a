"""Bodies are compiled before their first launch, for a Hopper card where there is none.

In a process of its own, because Triton's interpreter cannot be switched off again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import threading
from types import SimpleNamespace
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from threefold.kernels.triton.ahead import CompiledAhead

launched, made_by = [], []

class Launcher:
    def __init__(self, source, metadata):
        made_by.append(threading.current_thread().name)
        self._name = source.fn.__name__

    def __call__(self, *args):
        launched.append(self._name)

driver.set_active(SimpleNamespace(
    get_current_device=lambda: 0,
    get_current_stream=lambda device: 0,
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
    launcher_cls=Launcher,
    utils=SimpleNamespace(
        get_device_properties=lambda device: {"max_shared_mem": 227 << 10},
        load_binary=lambda name, binary, shared, device: (name, name, 32, 0, 1024),
    ),
))

@triton.jit
def copy(source_ptr, target_ptr, num, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(target_ptr + places, tl.load(source_ptr + places, mask=places < num), mask=places < num)

@triton.jit
def wrong(source_ptr, BLOCK: tl.constexpr):
    tl.store(source_ptr + tl.arange(0, BLOCK), tl.load(source_ptr + tl.arange(0, BLOCK // 2)))

source, target = torch.ones(64), torch.zeros(64)
with CompiledAhead(2) as ahead:
    with ahead.rehearsal():
        for block in (16, 32, 64, 64):
            copy[(1,)](source, target, 7, BLOCK=block)
        wrong[(1,)](source, BLOCK=64)
        elsewhere = threading.Thread(target=lambda: copy[(1,)](source, target, 7, BLOCK=128))
        elsewhere.start()
        elsewhere.join()
    assert launched == ["copy"], launched  # by the other thread, which rehearses nothing
    copy[(1,)](source, target, 7, BLOCK=32)  # waits for its own body
    assert launched == ["copy", "copy"], launched
assert ahead.num_bodies == 4, ahead.num_bodies
assert sum(name.startswith("compile") for name in made_by) == 3, made_by

def refuse(*args, **kwargs):
    raise AssertionError("compiled again")

copy.compile = refuse
for block in (16, 32, 64):
    copy[(1,)](source, target, 7, BLOCK=block)
assert len(launched) == 5, launched
try:
    wrong[(1,)](source, BLOCK=64)
except triton.CompilationError as error:
    print("refused where it is launched")
"""


def test_what_a_rehearsal_meets_is_compiled_in_threads_and_not_launched(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    found = subprocess.run(
        [sys.executable, str(_written(tmp_path))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout == "refused where it is launched\n"


def _written(folder: Path) -> Path:
    """In a file: Triton reads a body's source."""
    path = folder / "program.py"
    path.write_text(PROGRAM)
    return path
