"""Drafts that are being made while the host does not know yet what they follow: who gets them, and what they turn out.

Between launch and arrival a row's drafts are named by their places on the device. Whatever the drafter does wrong costs
drafts and no request. Knows nothing about models; runner/behind.py is the device's part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import torch

from threefold.draft.drafter import Draft
from threefold.kernels.drafting import BY_COMPARISON
from threefold.runner.behind import Running
from threefold.runner.drafting import Drafting, Offer
from threefold.runner.forward import DeviceRows
from threefold.runner.inputs import StepInputs
from threefold.runner.proposing import Proposing
from threefold.runner.rows import IntArray, Rows
from threefold.step import StepPlan


class BehindDrafter(Protocol):
    """A draft model that drafts behind a step before the host knows what it came to."""

    name: str

    def ahead(self, rows: Mapping[int, Running], drawn: torch.Tensor) -> Collection[int]:
        """Launch a drafting behind a step; two may be on their way.

        Args:
            rows: by request id, those that want drafts; all of their tokens before the step were observed.
            drawn: the tokens that the step draws, on the device.

        Returns:
            The requests that drafts will come for.
        """

    def expected(self, request_ids: Collection[int]) -> dict[int, Draft]:
        """Drafts of the last drafting, all that is known of them but the tokens; those of the step were observed."""

    def arrived(self) -> dict[int, list[int]]:
        """Wait for the oldest drafting's tokens."""

    def catch_up(self, request_ids: Collection[int]) -> None:
        """Launch what these requests lack to be drafted for behind the next step."""


class Ahead:
    """Draftings behind steps, and the rows that they are for.

    Args:
        drafter: the only one.
        drafting: counts its faults.
        proposing: tells it of tokens.
        rows: the worker's.
        device_rows: names places of drafts.
    """

    def __init__(
        self, drafter: BehindDrafter, drafting: Drafting, proposing: Proposing, rows: Rows, device_rows: DeviceRows
    ) -> None:
        self._drafter = drafter
        self._drafting = drafting
        self._proposing = proposing
        self._rows = rows
        self._device_rows = device_rows
        self._num_launched = 0
        self._num_arrived = 0

    @property
    def num_launched(self) -> int:
        """Draftings so far."""
        return self._num_launched

    def launch(
        self, plan: StepPlan, inputs: StepInputs, decreed: IntArray | None, drawn: torch.Tensor
    ) -> Collection[int]:
        """Draft behind the step launched last, for rows that ask and whose tokens before it are known.

        Args:
            plan: the step.
            inputs: made of it.
            decreed: drafts of each wanting row that hold by decree.
            drawn: [num_positions] on the device.

        Returns:
            The requests that drafts will come for.
        """
        wanted, asking = inputs.wanted, {}
        for place, row, first, drafts, num_held in zip(
            inputs.places.tolist(),
            wanted.rows.tolist(),
            wanted.first.tolist(),
            wanted.drafts,
            [BY_COMPARISON] * len(inputs.places) if decreed is None else decreed.tolist(),
            strict=True,
        ):
            request_id, num_computed, num_new, max_draft, _, _, next_draft = plan.rows[place]
            is_known = num_computed + num_new - max_draft == self._rows.lengths[row]
            if next_draft and is_known and self._drafting.follows(self._drafter.name, request_id):
                asking[request_id] = Running(first, drafts, num_held, next_draft, self._device_rows.draft_place(row))
        if not asking:
            return ()
        self._proposing.tell(asking)
        try:
            request_ids = self._drafter.ahead(asking, drawn)
        except Exception as error:  # noqa: BLE001  a drafter's fault costs drafts, never a request
            self._drafting.count_fault(self._drafter.name, "raised while drafting ahead", repr(error))
            return ()
        self._num_launched += bool(request_ids)
        return request_ids

    def take(self, num_launched: int) -> None:
        """Put drafts into their rows until so many draftings have arrived; waits for them."""
        rows = self._rows
        while self._num_arrived < num_launched:
            self._num_arrived += 1
            for request_id, token_ids in self._drafter.arrived().items():
                if request_id in rows:
                    row = rows.find(request_id)
                    rows.set_draft(row, token_ids[: int(rows.num_drafts[row])])

    def expect(self, ahead: Collection[int], wanted: Collection[int]) -> dict[int, Offer]:
        """The drafts that are being made behind the step that was collected.

        Args:
            ahead: the requests that drafts will come for.
            wanted: those that still want them; whoever was left out is made ready for the next step.
        """
        self._proposing.tell(wanted)
        drafts: Mapping[int, Draft] = {}
        try:
            drafts = self._drafter.expected([key for key in wanted if key in ahead])
            behind = [key for key in wanted if key not in ahead and self._drafting.follows(self._drafter.name, key)]
            if behind:
                self._drafter.catch_up(behind)
        except Exception as error:  # noqa: BLE001  as above
            self._drafting.count_fault(self._drafter.name, "raised behind a step", repr(error))
        for request_id, draft in drafts.items():
            row = self._rows.find(request_id)
            first = -1 - self._device_rows.draft_place(row)
            self._rows.set_draft(row, range(first, first - len(draft.token_ids), -1))
        return {request_id: (draft.survival, self._drafter.name) for request_id, draft in drafts.items()}
