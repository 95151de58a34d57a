"""Who may join the running batch, and what becomes of those who must leave it for want of blocks.

Two guards keep the batch from tearing itself down. A request is admitted only with blocks for all its known tokens at
once, so two half-fed giants cannot wait for each other; and only while a block stays spare for each running row (the
watermark), so the next few steps do not preempt what was just admitted. Latency targets, where there are any, bound the
running set besides, and refuse at the door who would wait too long (slo.py).
"""

from __future__ import annotations

from collections.abc import Callable

from threefold.cache.manager import CacheManager
from threefold.metrics import EngineStats
from threefold.request import Request, RequestStatus
from threefold.schedule.backoff import Backoff
from threefold.schedule.outlook import Line
from threefold.schedule.queue import WaitingQueue
from threefold.schedule.running import Row, RunningBatch
from threefold.schedule.slo import UNLIMITED, Slo


class Admission:
    """Moves requests between the queue and the running batch.

    Attributes:
        waiting: the requests that wait.
        is_short_of_blocks: True when, at the last look, somebody waited for nothing but blocks.
        max_rows: most running requests that latency targets allow.
    """

    def __init__(
        self,
        cache: CacheManager,
        running: RunningBatch,
        stats: EngineStats,
        *,
        backoff: Backoff,
        policy: str,
        slo: Slo | None = None,
        clock: Callable[[], float],
    ) -> None:
        self.waiting = WaitingQueue(policy)
        self.is_short_of_blocks = False
        self.max_rows = UNLIMITED
        self._cache = cache
        self._running = running
        self._stats = stats
        self._backoff = backoff
        self._slo = slo
        self._clock = clock
        self._lost_tokens: dict[int, int] = {}  # of preempted requests that wait: tokens that had been computed

    def add(self, request: Request) -> None:
        """A request arrives.

        Raises:
            OverloadedError: it would wait too long for the latency targets; nothing of it stays here.
        """
        if self._slo is not None:
            self._slo.check(request, self._line(request), self._clock())
        self.waiting.push(request)

    def withdraw(self, request_id: int) -> Request | None:
        """A waiting request is aborted. None = it did not wait."""
        self._lost_tokens.pop(request_id, None)
        return self.waiting.remove(request_id)

    def admit_next(self) -> Row | None:
        """Admit the request whose turn it is; None = nobody waits, or it must go on waiting.

        Nobody overtakes: a small request behind a large one waits with it, or the large one would wait for ever.
        """
        self.is_short_of_blocks = False
        request = self.waiting.peek()
        if request is None or len(self._running) >= min(self._backoff.num_rows, self.max_rows):
            return None
        if not self._reserve(request):
            self.is_short_of_blocks = True
            return None
        self.waiting.remove(request.request_id)
        self._count(request)
        request.status = RequestStatus.RUNNING
        row = Row(request, self.waiting.key(request), len(request.block_ids) * self._cache.block_size)
        self._running.enter(row)
        return row

    def preempt(self, row: Row) -> None:
        """Send a running request back to the front of the queue; it will compute its tokens again."""
        self._running.leave(row)
        request = row.request
        self._lost_tokens[request.request_id] = request.num_computed
        request.num_computed = 0
        request.num_preemptions += 1
        request.status = RequestStatus.WAITING
        self._stats.num_preemptions += 1
        self.waiting.push(request)

    def _line(self, request: Request) -> Line:
        """Who is before a request, and what there is for them."""
        return Line(
            self._running.rows,
            self.waiting.before(request),
            self._cache.num_free_blocks,
            self._cache.block_size,
            self._backoff.num_rows,
            self._backoff.num_tokens,
        )

    def _reserve(self, request: Request) -> bool:
        """Hold blocks for all known tokens, those of a cached prefix among them; all or nothing."""
        num_spare = len(self._running)
        if self._cache.num_free_blocks <= num_spare:
            return False  # at least one block would have to be new
        num_cached = self._cache.match(request)
        if self._cache.allocate(request, request.num_tokens, num_spare) is None:
            self._cache.free(request)
            return False
        request.num_computed = num_cached
        return True

    def _count(self, request: Request) -> None:
        num_cached = request.num_computed
        if request.first_scheduled_s is None:
            request.first_scheduled_s = self._clock()
            request.num_cached_tokens = num_cached
            self._stats.prefix_queries += request.num_prompt_tokens
            self._stats.prefix_hits += num_cached
            if self._slo is not None:
                self._slo.observe_admission(request.num_tokens, num_cached)
        lost = self._lost_tokens.pop(request.request_id, 0)
        self._stats.recomputed_tokens += max(lost - num_cached, 0)
