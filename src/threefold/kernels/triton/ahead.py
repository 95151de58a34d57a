"""Bodies compiled by many threads, before anybody waits for them.

    with CompiledAhead(16) as ahead:
        with ahead.rehearsal():
            ...        # nothing is launched: what would be is compiled meanwhile
        ...            # other work; a launch waits for its own body alone
                       # here all are there

Triton compiles a body when it is first launched, one after another, and most of that is done without Python's lock. A
body that cannot be compiled here is compiled, or refused, where it is launched. Knows nothing about which bodies there
are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from triton import AsyncCompileMode, FutureKernel
from triton.runtime import JITFunction


class CompiledAhead:
    """Threads that compile what is launched while this is entered.

    Args:
        num_threads: how many.
    """

    def __init__(self, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="compile")
        self._mode = AsyncCompileMode(_WithLauncher(self._threads), ignore_errors=True)

    def __enter__(self) -> CompiledAhead:
        self._mode.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until all bodies are there."""
        self._mode.__exit__(kind, error, trace)
        self._threads.shutdown()

    @property
    def num_bodies(self) -> int:
        """Bodies that were not in this process yet."""
        return len(self._mode.raw_futures)

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Launch nothing from this thread: results are whatever was in memory, so nothing may depend on them."""
        run, rehearsing = JITFunction.run, threading.get_ident()

        def prepare(body: Any, *args: Any, warmup: bool, **options: Any) -> Any:
            found = run(body, *args, warmup=warmup or threading.get_ident() == rehearsing, **options)
            if isinstance(found, FutureKernel) and found.future.done():
                found.result(ignore_errors=True)  # so that Triton finds it the next time, which is quicker
            return found

        JITFunction.run = prepare
        try:
            yield
        finally:
            JITFunction.run = run


class _WithLauncher(Executor):
    """Threads that also compile a body's launcher and bring its binary to the card, which the first launch would do."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads

    def submit(self, fn: Callable[..., Any], /, *_: Any, **__: Any) -> Future[Any]:
        """Call in a thread; Triton gives no arguments."""
        return self._threads.submit(_compiled, fn)


def _compiled(compile_body: Callable[[], Any]) -> Any:
    body = compile_body()
    body.run  # noqa: B018 (a property: asking for the launcher makes it)
    return body
