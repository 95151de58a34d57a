"""Where tensors live, behind one small protocol: the only place beside graphs.py that knows CUDA from a CPU.

Knows nothing about models. A CPU is a device like another: it has memory that is free, a peak that can be
measured and a number of threads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numba
import numpy.typing as npt
import psutil
import torch

from threefold.errors import ConfigError

_FP8_CAPABILITY = (8, 9)


class Device(Protocol):
    """What the runner needs to know of a device."""

    @property
    def name(self) -> str:
        """For messages: 'CPU, 2 threads' or the card's name."""

    @property
    def torch_device(self) -> torch.device:
        """What torch calls it."""

    @property
    def is_gpu(self) -> bool:
        """True on a card."""

    @property
    def supports_fp8(self) -> bool:
        """Whether compiled bodies may read and write FP8 numbers (e4m3)."""

    def tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """A host array on the device; on a CPU it is the same memory."""

    def synchronize(self) -> None:
        """Wait for all work launched so far."""

    def clock_ms(self) -> float:
        """Time, once all work launched so far is done."""

    def total_bytes(self) -> int:
        """Memory of the device that this process may use at most."""

    def free_bytes(self) -> int:
        """Memory that is free now."""

    def measure_peak_bytes(self, work: Callable[[], object]) -> int:
        """Run some work; the most memory it held at once beyond what was held before."""

    def release_unused(self) -> None:
        """Give memory that torch holds without using it back to the system, so that large pieces can be had."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an allocation of this device failed: what was asked for is not done, everything else is as before."""

    def time_ms(self, work: Callable[[], object]) -> float:
        """Run some work; the time from its first launch to its end, without anything launched before."""


class CpuDevice:
    """Host memory and cores.

    Args:
        num_threads: threads for products and attention; None = every core this process may use.
    """

    is_gpu = False
    supports_fp8 = False
    torch_device = torch.device("cpu")

    def __init__(self, num_threads: int | None = None) -> None:
        self._num_threads = num_threads or num_usable_cores()
        torch.set_num_threads(self._num_threads)
        numba.set_num_threads(min(self._num_threads, numba.config.NUMBA_NUM_THREADS))

    @property
    def name(self) -> str:
        """The number of threads is what tells one CPU device from another."""
        return f"CPU, {self._num_threads} thread{'s' if self._num_threads > 1 else ''}"

    def tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """The array's own memory."""
        return torch.from_numpy(array)

    def synchronize(self) -> None:
        """Nothing is ever in flight."""

    def clock_ms(self) -> float:
        """Time."""
        return time.perf_counter() * 1000

    def total_bytes(self) -> int:
        """The machine's memory, or the container's where it is less."""
        limit, _ = _cgroup_memory()
        return min(psutil.virtual_memory().total, limit)

    def free_bytes(self) -> int:
        """What could be had without swapping and without the container's end."""
        limit, used = _cgroup_memory()
        return max(0, min(psutil.virtual_memory().available, limit - used))

    def measure_peak_bytes(self, work: Callable[[], object]) -> int:
        """By the kernel's high-water mark where it can be set back, else by what is held afterwards."""
        has_mark = _reset_high_water_mark()
        before = psutil.Process().memory_info().rss
        work()
        after = _high_water_mark() if has_mark else psutil.Process().memory_info().rss
        return max(0, after - before)

    def release_unused(self) -> None:
        """The system's own allocator does."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Python's error, or that of torch's CPU allocator, which has no class of its own."""
        return isinstance(error, MemoryError) or (
            isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
        )

    def time_ms(self, work: Callable[[], object]) -> float:
        """By the clock."""
        start = self.clock_ms()
        work()
        return self.clock_ms() - start


class CudaDevice:
    """One CUDA card."""

    is_gpu = True

    def __init__(self, index: int = 0) -> None:
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(index)

    @property
    def name(self) -> str:
        """As the driver calls the card."""
        return torch.cuda.get_device_name(self.torch_device)

    @property
    def supports_fp8(self) -> bool:
        """From Ada and Hopper on."""
        return torch.cuda.get_device_capability(self.torch_device) >= _FP8_CAPABILITY

    def tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """A copy on the card."""
        return torch.from_numpy(array).to(self.torch_device, non_blocking=True)

    def synchronize(self) -> None:
        """Wait for the current stream."""
        torch.cuda.synchronize(self.torch_device)

    def clock_ms(self) -> float:
        """Time after a synchronisation."""
        self.synchronize()
        return time.perf_counter() * 1000

    def total_bytes(self) -> int:
        """The card's memory."""
        return torch.cuda.mem_get_info(self.torch_device)[1]

    def free_bytes(self) -> int:
        """What the driver would still give, and what torch holds without using it."""
        idle = torch.cuda.memory_reserved(self.torch_device) - torch.cuda.memory_allocated(self.torch_device)
        return torch.cuda.mem_get_info(self.torch_device)[0] + idle

    def measure_peak_bytes(self, work: Callable[[], object]) -> int:
        """By torch's own accounts."""
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        before = torch.cuda.memory_allocated(self.torch_device)
        work()
        self.synchronize()
        return torch.cuda.max_memory_allocated(self.torch_device) - before

    def release_unused(self) -> None:
        """Empty torch's cache of freed memory."""
        torch.cuda.empty_cache()

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Torch's own class; drivers and cuBLAS name it in a plain RuntimeError."""
        if isinstance(error, torch.OutOfMemoryError):
            return True
        words = str(error)
        return isinstance(error, RuntimeError) and ("out of memory" in words or "CUBLAS_STATUS_ALLOC_FAILED" in words)

    def time_ms(self, work: Callable[[], object]) -> float:
        """By events on the stream; a step of few tokens would otherwise be timed with the host's waking up."""
        self.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        work()
        end.record()
        end.synchronize()
        ms: float = begin.elapsed_time(end)
        return ms

    def captured(self, work: Callable[[], object]) -> Callable[[], None]:
        """Work captured into a graph, after it has run once: what launches it again at once."""
        current = torch.cuda.current_stream(self.torch_device)
        aside = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            work()  # compiles bodies, makes workspaces
        current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        graph.replay()
        return graph.replay

    def replay_ms(self, work: Callable[[], object], num_replays: int = 10) -> float:
        """Best time of work captured into a graph: what it costs the card when launching costs nothing."""
        replay = self.captured(work)
        return min(self.time_ms(replay) for _ in range(num_replays))


def open_device(asked: str, num_threads: int | None = None) -> Device:
    """The device that was asked for.

    Args:
        asked: auto (a card where there is one), cpu or cuda.
        num_threads: for a CPU; None = every core this process may use.

    Raises:
        ConfigError: cuda was asked for and is not there, or the name is unknown.
    """
    if asked not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device {asked} is unknown; use auto, cpu or cuda")
    most = max(num_usable_cores(), os.cpu_count() or 1)  # a quota may be exceeded for a while
    if num_threads is not None and not 1 <= num_threads <= most:
        raise ConfigError(f"--num-threads {num_threads}: this machine has {most} cores; use 1 to {most}")
    if asked == "cpu" or (asked == "auto" and not torch.cuda.is_available()):
        return CpuDevice(num_threads)
    if not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no CUDA card; use --device cpu, or install a CUDA build of torch")
    return CudaDevice()


def num_devices(device: Device) -> int:
    """Devices of this kind that are there; a machine's cores are one."""
    return torch.cuda.device_count() if device.is_gpu else 1


def num_usable_cores() -> int:
    """Cores that affinity and the container's quota leave to this process."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    quota = _read_words(Path("/sys/fs/cgroup/cpu.max"))
    if len(quota) == 2 and quota[0].isdigit():
        cores = min(cores, max(1, round(int(quota[0]) / int(quota[1]))))
    return cores


def _cgroup_memory() -> tuple[int, int]:
    """(limit, used) bytes of this process's container; without one, a limit beyond any machine."""
    unlimited = 1 << 62
    for folder, limit_name, used_name in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit = _read_words(Path(folder) / limit_name)
        used = _read_words(Path(folder) / used_name)
        if limit and used and limit[0].isdigit() and used[0].isdigit():
            return int(limit[0]), int(used[0])
    return unlimited, 0


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []


def _reset_high_water_mark() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _high_water_mark() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
