from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from threefold.errors import ConfigError
from threefold.runner.device import CpuDevice, CudaDevice, num_usable_cores, open_device


@pytest.fixture(autouse=True)
def _threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_arrays_are_shared_with_the_host():
    array = np.arange(4)
    tensor = CpuDevice(1).tensor(array)
    array[0] = 9
    assert tensor.tolist() == [9, 1, 2, 3]


def test_threads_are_as_asked_or_every_usable_core():
    assert CpuDevice(1).name == "CPU, 1 thread"
    assert torch.get_num_threads() == 1
    CpuDevice()
    assert torch.get_num_threads() == num_usable_cores() >= 1


def test_free_memory_is_within_the_total():
    device = CpuDevice(1)
    assert 0 < device.free_bytes() <= device.total_bytes()


def test_the_peak_is_that_of_the_work():
    """In a process of its own: one that has freed as much before would serve the work from what it still holds."""
    program = (
        "import numpy as np; from threefold.runner.device import CpuDevice; "
        "print(CpuDevice(1).measure_peak_bytes(lambda: np.ones(2**26, dtype=np.uint8).sum()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 0.5 * 2**26 < int(done.stdout) < 4 * 2**26


def test_the_clock_goes_forward():
    device = CpuDevice(1)
    device.synchronize()
    assert device.clock_ms() <= device.clock_ms()


def test_auto_and_cpu_open_a_cpu_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not open_device("auto", 1).is_gpu
    assert not open_device("cpu", 1).is_gpu


@pytest.mark.parametrize(
    ("asked", "threads", "says"), [("tpu", 1, "auto, cpu or cuda"), ("cpu", 0, "use 1 to"), ("cpu", 99_999, "use 1 to")]
)
def test_what_cannot_be_is_refused_in_one_line(asked, threads, says):
    with pytest.raises(ConfigError, match=says):
        open_device(asked, threads)


def test_cuda_without_a_card_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no CUDA card"):
        open_device("cuda")


def test_a_containers_limits_count(monkeypatch):
    files = {"cpu.max": ["150000", "100000"], "memory.max": [str(2**30)], "memory.current": [str(2**29)]}
    monkeypatch.setattr("threefold.runner.device._read_words", lambda path: files.get(path.name, []))
    assert num_usable_cores() <= 2
    device = CpuDevice(1)
    assert device.total_bytes() == 2**30
    assert device.free_bytes() <= 2**29


def test_a_failed_allocation_is_told_from_other_faults():
    device = CpuDevice(1)
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert device.is_out_of_memory(caught.value)
    assert device.is_out_of_memory(MemoryError())
    assert not device.is_out_of_memory(RuntimeError("shapes"))
    assert not device.is_out_of_memory(ValueError("DefaultCPUAllocator: can't allocate memory"))


def test_a_cards_failed_allocations_are_known_by_class_and_by_word():
    is_out_of_memory = CudaDevice.is_out_of_memory
    assert is_out_of_memory(None, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert is_out_of_memory(None, RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    assert not is_out_of_memory(None, RuntimeError("CUDA error: an illegal memory access was encountered"))


def test_work_is_timed():
    device = CpuDevice(1)
    done = []
    assert device.time_ms(lambda: done.append(1)) >= 0
    assert done == [1]
    device.release_unused()
