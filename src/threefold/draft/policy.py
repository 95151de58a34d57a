"""What the scheduler knows of speculation, and the two policies that never learn.

Knows nothing about tokens or costs; controller.py holds the policy that does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from threefold.cost import StepShape

_NOBODY: Mapping[int, int] = MappingProxyType({})


class RowDraft(NamedTuple):
    """The drafts at hand for one row."""

    request_id: int
    survival: tuple[float, ...]
    """The drafter's estimate that draft i *and all before it* are accepted; empty = no drafts at hand."""
    drafter: str
    context_tokens: int
    """KV tokens that the row's queries look at."""


class DraftPolicy(Protocol):
    """How many drafts to verify and to propose; the scheduler's only view of speculation.

    Attributes:
        is_learning: whether `observe_step` and `glimpse` come to anything; if not, nobody need call them.
    """

    is_learning: bool

    def start(self, request_id: int, limit: int) -> None:
        """A request enters the running batch; it may never have more than `limit` drafts in a step."""

    def stop(self, request_id: int) -> None:
        """The request left the running batch (ended, aborted or preempted); unknown ids are ignored."""

    def choose(self, rows: Sequence[RowDraft], shape: StepShape) -> list[int]:
        """How many of each row's drafts to verify.

        Args:
            rows: the rows that have drafts at hand; the step may commit tokens for others too.
            shape: the step without any draft, prompt chunks included.
        """

    def begin_ahead(self) -> None:
        """The step planned next goes behind one that has not been observed yet; called before its appetites are asked.

        `observe_step` then speaks of the older of the two.
        """

    def appetites(self, request_ids: Sequence[int]) -> Mapping[int, int]:
        """Longest draft worth proposing after the step being planned, for the requests where it is more than 0.

        Asked once while a step is planned, before `choose`, about all rows that commit a token in it.
        """

    def glimpse(self, seen: Mapping[int, float]) -> None:
        """Drafts that can be expected to come true if these requests were asked, by request id; 0 = none in sight.

        Said where looking costs nothing and asking holds the device up; elsewhere asking is the way to know.
        """

    def observe(self, request_id: int, drafter: str, num_drafted: int, num_accepted: int) -> None:
        """A step verified num_drafted drafts of the request and accepted the first num_accepted.

        Called before `observe_step`, for the rows that had drafts.
        """

    def observe_step(self, shape: StepShape, forward_ms: float, draft_ms: float, num_committed: int) -> None:
        """A step of this shape, its drafts included, took that long and committed that many tokens."""

    def catch_up(self) -> None:
        """Nothing waits for the policy now: learn what was left for later."""

    @property
    def gain_ratio(self) -> float:
        """Estimated tokens per second with drafts over without, lately; 1.0 = no difference."""

    @property
    def gain_error(self) -> float:
        """Standard error of gain_ratio."""

    @property
    def gain_by_drafter(self) -> Mapping[str, float]:
        """gain_ratio of each drafter's drafts alone; empty = nothing known."""


class NoDrafts:
    """Speculation off: the null policy."""

    is_learning = False
    gain_ratio = 1.0
    gain_error = 0.0
    gain_by_drafter: Mapping[str, float] = MappingProxyType({})

    def start(self, request_id: int, limit: int) -> None:
        """Nothing to remember."""

    def stop(self, request_id: int) -> None:
        """Nothing to forget."""

    def choose(self, rows: Sequence[RowDraft], shape: StepShape) -> list[int]:  # noqa: ARG002
        """No drafts."""
        return [0] * len(rows)

    def begin_ahead(self) -> None:
        """Nothing to keep apart."""

    def appetites(self, request_ids: Sequence[int]) -> Mapping[int, int]:  # noqa: ARG002
        """No drafts."""
        return _NOBODY

    def glimpse(self, seen: Mapping[int, float]) -> None:
        """Nothing to learn."""

    def observe(self, request_id: int, drafter: str, num_drafted: int, num_accepted: int) -> None:
        """Nothing to learn."""

    def observe_step(self, shape: StepShape, forward_ms: float, draft_ms: float, num_committed: int) -> None:
        """Nothing to learn."""

    def catch_up(self) -> None:
        """Nothing to learn."""


class FixedDrafts(NoDrafts):
    """Always as many drafts as proposed, up to k: what a user gets who switches adaptation off."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._limits: dict[int, int] = {}

    def start(self, request_id: int, limit: int) -> None:
        """Remember the request's own limit."""
        self._limits[request_id] = min(limit, self._k)

    def stop(self, request_id: int) -> None:
        """Forget the request."""
        self._limits.pop(request_id, None)

    def choose(self, rows: Sequence[RowDraft], shape: StepShape) -> list[int]:  # noqa: ARG002
        """All drafts at hand, up to the limit."""
        return [min(len(row.survival), self._limits[row.request_id]) for row in rows]

    def begin_ahead(self) -> None:
        """Nothing to keep apart."""

    def appetites(self, request_ids: Sequence[int]) -> Mapping[int, int]:
        """The limits."""
        limits = self._limits
        return {request_id: limits[request_id] for request_id in request_ids if limits[request_id]}
