"""The running batch: which requests have a row, in which order, and what is at hand for each.

The order decides everything that is scarce: who is fed first, who keeps its blocks, who is preempted (the last).
"""

from __future__ import annotations

from bisect import insort

from threefold.cache.manager import CacheManager
from threefold.draft.controller import DraftPolicy
from threefold.request import Request
from threefold.schedule.queue import OrderKey
from threefold.step import TokenLogprobs


class Row:
    """A request's place in the running batch.

    Attributes:
        request: whose place it is.
        key: its place in the order.
        num_slots: tokens that the request's blocks can hold.
        max_draft: most drafts in a step that the request admits.
        survival: for the drafts at hand, what the drafter thinks of them; as long as there are drafts.
        drafter: who proposed them.
        prompt_logprobs: those of the chunks fed so far, until the first token takes them along.
        is_bound: its next token cannot be drawn before its last one is known, or its results take more than tokens.
    """

    __slots__ = ("drafter", "is_bound", "key", "max_draft", "num_slots", "prompt_logprobs", "request", "survival")

    def __init__(self, request: Request, key: OrderKey, num_slots: int) -> None:
        self.request = request
        self.key = key
        self.num_slots = num_slots
        limit = request.params.max_draft_tokens
        self.max_draft = request.max_total_tokens if limit is None else limit
        self.survival: tuple[float, ...] = ()
        self.drafter = ""
        self.prompt_logprobs: list[TokenLogprobs] = []
        params = request.params
        has_logprobs = params.logprobs is not None or params.prompt_logprobs is not None
        self.is_bound = has_logprobs or params.reads_history

    def useful_draft(self, num_committed: int) -> int:
        """Longest draft of any use once num_committed more tokens are known; a step says one token itself."""
        request = self.request
        room = request.max_total_tokens - len(request.token_ids) - num_committed - 1
        if room > self.max_draft:
            return self.max_draft
        return room if room > 0 else 0


class RunningBatch:
    """Rows in order, and the one way out for them.

    Attributes:
        rows: all rows, first served first.
        by_id: the same by request id.
        num_bound: rows that keep steps from overlapping.
        num_left: rows that have left so far.
        end_token_ids: tokens that end one of them, and perhaps some that ended others.
    """

    def __init__(self, cache: CacheManager, controller: DraftPolicy) -> None:
        self.rows: list[Row] = []
        self.by_id: dict[int, Row] = {}
        self.num_bound = 0
        self.num_left = 0
        self.end_token_ids: set[int] = set()
        self._cache = cache
        self._controller = controller
        self._dropped: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def enter(self, row: Row) -> None:
        """A request is admitted."""
        insort(self.rows, row, key=lambda other: other.key)
        if not self.by_id:
            self.end_token_ids.clear()
        self.by_id[row.request.request_id] = row
        self.num_bound += row.is_bound
        self.end_token_ids |= row.request.end_token_ids
        self._controller.start(row.request.request_id, row.max_draft)

    def leave(self, row: Row) -> None:
        """A request ended, was aborted or preempted: its blocks are free at once, the worker learns with the next plan.

        The row stays in `rows` until `sweep`, so that several can leave in one pass.
        """
        request_id = row.request.request_id
        del self.by_id[request_id]
        self.num_bound -= row.is_bound
        self.num_left += 1
        self._cache.free(row.request)
        self._controller.stop(request_id)
        self._dropped.append(request_id)

    def sweep(self) -> None:
        """Close up after rows left."""
        self.rows = [row for row in self.rows if row.request.request_id in self.by_id]

    def take_dropped(self) -> list[int]:
        """Request ids that left since the last plan."""
        dropped, self._dropped = self._dropped, []
        return dropped
