"""A draft model that drafts behind steps whose result nobody knows yet: for the time that the host needs in between.

    step t runs ........ │ drafting behind it ............. │ step t + 1 ........ │
                         │ host: commit t, plan and launch t + 1
    ahead()              │ expected()                       │ arrived()

Its KV must hold all of a row but the last known token, as it does behind an asking; a row that is not so far is caught
up, and drafts a step later. What a draft's chances are is known when it arrives, too late to decide by: till then they
are what they were on average.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from threefold.draft.draft_model import LEAST_SURVIVAL, MOST_SURVIVAL, DraftModelDrafter
from threefold.draft.drafter import Draft
from threefold.runner.behind import Coming, Following, GraphBehind, Running
from threefold.runner.inputs import build_inputs
from threefold.runner.rounds import MOST_FED
from threefold.step import RowPlan, StepPlan

MEMORY_DRAFTINGS = 20.0
"""Draftings over which chances are averaged."""
FIRST_CHANCE = 0.8
"""Taken for the chance of a draft before any has arrived."""


@dataclass(slots=True)
class _Drafting:
    """One drafting on its way."""

    coming: Coming
    most: dict[int, int]
    """Drafts wanted, by request id, in the order of its rows; a request that left is not taken out of it."""
    ends: dict[int, int]
    """Where the room of a row ends, by request id."""
    lengths: dict[int, int]
    """Committed tokens that the drafts follow, by request id; only of those that turned out as the device had it."""


class BehindDraftModel(DraftModelDrafter):
    """A drafter over a model on a card.

    Args:
        behind: launches draftings.
        args, settings: as DraftModelDrafter's.
    """

    def __init__(self, behind: GraphBehind, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._behind = behind
        self._draftings: deque[_Drafting] = deque()
        self._chances = np.full(behind.max_draft, FIRST_CHANCE)

    def stop(self, request_id: int) -> None:
        """Forget the request, and what is on its way for it."""
        self._forget(request_id)
        super().stop(request_id)

    def recall(self, request_id: int) -> None:
        """The lent blocks are somebody else's now; what is on its way is good, but its KV is lost."""
        self._forget(request_id)
        super().recall(request_id)

    def _survival(self) -> tuple[float, ...]:
        """What can be expected of a draft that is on its way."""
        chances = self._chances if self._assumed_chance is None else np.full(len(self._chances), self._assumed_chance)
        alive = chances.clip(max=MOST_SURVIVAL).cumprod()
        return tuple(alive[alive >= LEAST_SURVIVAL].tolist())

    def _learn(self, chances: npt.NDArray[np.float64]) -> None:
        """What drafts were given on average, [num_tokens]."""
        self._chances[: len(chances)] += (chances - self._chances[: len(chances)]) / MEMORY_DRAFTINGS

    def _forget(self, request_id: int) -> None:
        for drafting in self._draftings:
            drafting.lengths.pop(request_id, None)

    def ahead(self, rows: Mapping[int, Running], drawn: torch.Tensor) -> Collection[int]:
        """Draft behind the step that was launched last.

        Args:
            rows: its rows that want drafts, all of whose tokens before the step were observed.
            drawn: [num_positions] int64 on the device, the tokens that the step draws.

        Returns:
            The requests that drafts will come for.
        """
        following: dict[int, Following] = {}
        for request_id, running in rows.items():
            followed = self._followed[request_id]
            length = int(self._rows.lengths[followed.row])
            end = min(self._room(followed), self._max_positions)
            is_ready = length - followed.num_computed < MOST_FED and end > length
            if is_ready and len(following) < self._behind.max_rows:
                last_token = int(self._rows.token_ids[followed.row, length - 1])
                following[request_id] = Following(running, followed.row, length, last_token, end)
        if following:
            coming = self._behind.launch(list(following.values()), drawn, self._rows.take_growth())
            most = {request_id: row.running.most for request_id, row in following.items()}
            ends = {request_id: row.end for request_id, row in following.items()}
            self._draftings.append(_Drafting(coming, most, ends, {}))
        return following.keys()

    def expected(self, request_ids: Collection[int]) -> dict[int, Draft]:
        """Drafts on their way for these requests of the last drafting, whose tokens of that step are observed by now.

        Their token ids are not known and stand as zeros.
        """
        drafting = self._draftings[-1]
        survival = self._survival()
        drafts = {}
        for request_id in request_ids:
            followed, end = self._followed[request_id], drafting.ends[request_id]
            length = int(self._rows.lengths[followed.row])
            followed.num_computed, followed.drafted = min(length, end), []
            drafting.lengths[request_id] = length
            num_tokens = min(drafting.most[request_id], end - length + 1, len(survival))  # the last one is never fed
            if num_tokens > 0:
                drafts[request_id] = Draft([0] * num_tokens, survival[:num_tokens])
        return drafts

    def arrived(self) -> dict[int, list[int]]:
        """The drafts of the oldest drafting, by request id; waits for them."""
        drafting = self._draftings.popleft()
        token_ids, chances = drafting.coming.wait()
        columns = dict(zip(drafting.most, token_ids.T.tolist(), strict=True))
        num_fed = len(token_ids) - 1
        for request_id, length in drafting.lengths.items():
            num_kept = min(num_fed, drafting.ends[request_id] - length)
            self._followed[request_id].drafted = columns[request_id][:num_kept]
        self._learn(chances.mean(axis=1))
        most_known = self._vocab_size - 1  # as they were fed to the target
        return {
            request_id: [min(token_id, most_known) for token_id in column[: drafting.most[request_id]]]
            for request_id, column in columns.items()
        }

    def catch_up(self, request_ids: Collection[int]) -> None:
        """Feed what these requests are behind, as far as it may go; waits for nothing."""
        plans = []
        budget = self._max_tokens
        for request_id in request_ids:
            followed = self._followed[request_id]
            followed.drafted = []
            end = min(int(self._rows.lengths[followed.row]), self._room(followed), self._max_positions)
            num_fed = min(end - followed.num_computed, budget)
            if num_fed > 0:
                plans.append(RowPlan(request_id, followed.num_computed, num_fed, 0, (), False, 0))
                followed.num_computed += num_fed
                budget -= num_fed
        if plans:
            self._forward.run(build_inputs(StepPlan(plans), self._rows).arrays, 0)
