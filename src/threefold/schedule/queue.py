"""The requests that wait, in the order in which they are admitted."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from threefold.request import Request

OrderKey = tuple[int, float, int]
"""(priority, or 0 where it is no matter; arrival; request id): smaller goes first."""


class WaitingQueue:
    """First come first served, or by priority and then so.

    One key orders waiting and running requests alike, so a preempted request, which was the last of the running ones,
    goes back before all that arrived after it: to the front.
    """

    def __init__(self, policy: str) -> None:
        self._uses_priority = policy == "priority"
        self._requests: dict[int, Request] = {}
        self._heap: list[OrderKey] = []  # may name requests that are gone

    def __len__(self) -> int:
        return len(self._requests)

    def key(self, request: Request) -> OrderKey:
        """The request's place in the order."""
        return (request.priority if self._uses_priority else 0, request.arrival_s, request.request_id)

    def push(self, request: Request) -> None:
        """A request begins to wait."""
        self._requests[request.request_id] = request
        heappush(self._heap, self.key(request))

    def peek(self) -> Request | None:
        """The request that is next, None = nobody waits."""
        while self._heap:
            request = self._requests.get(self._heap[0][2])
            if request is not None:
                return request
            heappop(self._heap)
        return None

    def before(self, request: Request) -> list[Request]:
        """All that wait and would be admitted before a request, itself not among them, in their order."""
        key = self.key(request)
        return sorted((one for one in self._requests.values() if self.key(one) < key), key=self.key)

    def remove(self, request_id: int) -> Request | None:
        """A request waits no more: it was admitted or aborted. None = it did not wait."""
        request = self._requests.pop(request_id, None)
        if len(self._heap) > 2 * len(self._requests) + 64:  # a storm of aborts must not pile up names of the gone
            self._heap = [self.key(waiting) for waiting in self._requests.values()]
            heapify(self._heap)
        return request
