"""What every drafter answers: four verbs. A new drafter is one file beside this one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt


class Draft(NamedTuple):
    """Proposed, unverified tokens of one request."""

    token_ids: list[int]
    survival: tuple[float, ...]
    """The drafter's estimate that token i *and all before it* are accepted; as long as token_ids, not increasing."""


class RowTexts(NamedTuple):
    """Rows' committed tokens, where they are kept."""

    token_ids: npt.NDArray[np.int32]
    """[max_rows, width]."""
    lengths: npt.NDArray[np.int64]
    """[max_rows]."""
    rows: npt.NDArray[np.int64]
    """[num_rows] the rows in question."""


class RowDrafts(NamedTuple):
    """Drafts of several rows."""

    token_ids: npt.NDArray[np.int32]
    """[num_rows, most]."""
    survival: npt.NDArray[np.float64]
    """[num_rows, most], as a Draft has it."""
    counts: npt.NDArray[np.int64]
    """[num_rows] tokens drafted; 0 = no good guess."""

    def by_request(self, request_ids: Iterable[int]) -> dict[int, Draft]:
        """The same for the requests in these rows, those without a good guess left out."""
        drafts = zip(request_ids, self.token_ids.tolist(), self.survival.tolist(), self.counts.tolist(), strict=True)
        return {request_id: Draft(ids[:num], tuple(chances[:num])) for request_id, ids, chances, num in drafts if num}


class Drafter(Protocol):
    """Proposes tokens; the model verifies them, so a wrong one costs time and never text.

    A drafter's fault is contained by its caller: an exception, a token outside the vocabulary or too many tokens end in
    no draft for that row.
    """

    name: str
    """For metrics and for the controller, which keeps its statistics by drafter."""

    def start(self, request_id: int, token_ids: Sequence[int], salt: str) -> None:
        """A request begins (or begins again after preemption) with these tokens; salts never share memory."""

    def observe(self, request_id: int, token_ids: Sequence[int]) -> None:
        """These tokens were committed after those already known."""

    def propose(self, wanted: Mapping[int, int]) -> dict[int, Draft]:
        """Propose up to wanted[request_id] tokens each; a request without a good guess is left out."""

    def stop(self, request_id: int) -> None:
        """The request left (ended, aborted or preempted); forget what is its own."""


class KVDrafter(Drafter, Protocol):
    """A drafter that keeps KV of its own, in blocks that the target's cache lends it."""

    def lend(self, request_id: int, block_ids: Sequence[int]) -> None:
        """These blocks of the target's cache may hold the request's KV, after those lent before."""

    def recall(self, request_id: int) -> None:
        """All blocks lent for the request are somebody else's now; an unknown request is ignored."""


@runtime_checkable
class RowDrafter(Drafter, Protocol):
    """A drafter that reads rows' tokens for itself and drafts for all of them at once: the device waits meanwhile."""

    def draft_rows(self, request_ids: Sequence[int], num_wanted: npt.NDArray[np.int64], texts: RowTexts) -> RowDrafts:
        """What `observe` and `propose` come to; up to num_wanted[i] tokens, at least 1, of the request in each row."""
