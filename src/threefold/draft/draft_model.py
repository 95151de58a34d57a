"""Drafts by a second, smaller model (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318).

    target's tokens   [ ................................ | new ]
    KV of the draft   [ valid ......... | to catch up .......... | drafted d1 d2 … ]

Nothing happens in a step that asks for no drafts: what was committed meanwhile is fed when drafts are wanted again,
many tokens at once. Each further draft is one more pass over the rows that still go on; a row stops where the model
itself no longer believes that the draft survives. On a card all passes of a step are launched at once, which is worth
more than sparing those of rows that would have stopped. Drafts are the model's most likely tokens. Its KV lies in
blocks lent by the target's cache; without them a row has no drafts, and nothing else happens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from threefold.draft.drafter import Draft
from threefold.request import SamplingParams
from threefold.runner.certainty import likely_next
from threefold.runner.forward import Forward
from threefold.runner.inputs import build_inputs
from threefold.runner.lent_kv import LentKV
from threefold.runner.rounds import Rounds
from threefold.runner.rows import Rows
from threefold.runner.trust import num_common
from threefold.step import NewRow, RowPlan, StepPlan

LEAST_SURVIVAL = 0.1
"""A draft ends where less than this is left."""
MOST_SURVIVAL = 0.99
"""A model's certainty about its own next token says less about another model's."""


class _Followed:
    """A request that the drafter knows."""

    __slots__ = ("drafted", "num_computed", "row")

    def __init__(self, row: int) -> None:
        self.row = row
        self.num_computed = 0
        """Committed tokens whose KV is valid."""
        self.drafted: list[int] = []
        """Drafts whose KV lies behind them, until the next tokens show which of it is valid."""


class _Growing:
    """A draft in the making."""

    __slots__ = ("alive", "most", "survival", "token_ids")

    def __init__(self, most: int) -> None:
        self.most = most
        self.alive = 1.0
        self.token_ids: list[int] = []
        self.survival: list[float] = []

    def extend(self, token_id: int, chance: float) -> bool:
        """Take one more draft; False = the draft ends here."""
        self.alive *= min(chance, MOST_SURVIVAL)
        if self.alive < LEAST_SURVIVAL:
            return False
        self.token_ids.append(token_id)
        self.survival.append(self.alive)
        return len(self.token_ids) < self.most


class DraftModelDrafter:
    """A drafter over a model.

    Args:
        forward: runs the draft model over the lent memory.
        kv: how lent blocks become the draft model's.
        rows: persistent state of its own, as large as the target's, with the draft model's block size.
        vocab_size: the target's; the draft model's further ids are padding.
        max_tokens: most tokens in a pass.
        max_positions: the draft model's longest context; beyond it a row has no drafts.
        assumed_chance: taken for the chance of each draft; None = the model's own probability of it.
        rounds: runs all passes behind the first at once; None = one after another.
    """

    name = "draft_model"

    def __init__(
        self,
        forward: Forward,
        kv: LentKV,
        rows: Rows,
        *,
        vocab_size: int,
        max_tokens: int,
        max_positions: int,
        assumed_chance: float | None = None,
        rounds: Rounds | None = None,
    ) -> None:
        self._forward = forward
        self._kv = kv
        self._rows = rows
        self._vocab_size = vocab_size
        self._max_tokens = max_tokens
        self._max_positions = max_positions
        self._assumed_chance = assumed_chance
        self._rounds = rounds
        self._followed: dict[int, _Followed] = {}

    def start(self, request_id: int, token_ids: Sequence[int], salt: str) -> None:
        """Begin; its KV is shared with nobody, so the salt does not matter."""
        row = NewRow(request_id, tuple(token_ids), len(token_ids), SamplingParams(), frozenset(), 0, salt)
        self._followed[request_id] = _Followed(self._rows.add(row))

    def observe(self, request_id: int, token_ids: Sequence[int]) -> None:
        """Append; the KV of drafts that came true stays valid."""
        followed = self._followed[request_id]
        followed.num_computed += num_common(token_ids, followed.drafted)
        followed.drafted = []
        self._rows.append(followed.row, token_ids)

    def stop(self, request_id: int) -> None:
        """Forget the request."""
        if self._followed.pop(request_id, None) is not None:
            self._rows.drop(request_id)

    def lend(self, request_id: int, block_ids: Sequence[int]) -> None:
        """Room for more of the request's KV; what is beyond the longest text stays unused."""
        row = self._followed[request_id].row
        num_useful = self._rows.block_tables.shape[1] - int(self._rows.num_blocks[row])
        self._rows.grow(row, self._kv.units(block_ids)[:num_useful])

    def recall(self, request_id: int) -> None:
        """The lent blocks are somebody else's now."""
        followed = self._followed.get(request_id)
        if followed is not None:
            self._rows.num_blocks[followed.row] = 0
            followed.num_computed = 0
            followed.drafted = []

    def propose(self, wanted: Mapping[int, int]) -> dict[int, Draft]:
        """The most likely continuation; rows without room for their KV, or that have not caught up yet, get none."""
        plans, growing = self._catch_up(wanted)
        drafts = dict(growing)
        if growing and self._rounds is not None:
            self._draft_at_once(plans, growing, self._rounds)
        elif growing:
            self._draft_by_passes(plans, growing)
        return {
            request_id: Draft(draft.token_ids, tuple(draft.survival))
            for request_id, draft in drafts.items()
            if draft.token_ids
        }

    def _draft_by_passes(self, plans: list[RowPlan], growing: dict[int, _Growing]) -> None:
        known = {request_id: int(self._rows.lengths[self._followed[request_id].row]) for request_id in growing}
        while growing:
            growing = self._pass(plans, growing)
            plans = [self._next_plan(request_id) for request_id in growing]
        for request_id, num_known in known.items():
            self._take_back(request_id, num_known)

    def _draft_at_once(self, plans: list[RowPlan], growing: dict[int, _Growing], rounds: Rounds) -> None:
        """All passes, whoever stops when; the first one leaves each row's choice with the device."""
        inputs = build_inputs(StepPlan(plans), self._rows)
        found = self._forward.run(inputs.arrays, inputs.num_wanted)
        num_rounds = max(draft.most for draft in growing.values()) - 1
        followed = [self._followed[request_id] for request_id in growing]
        rows = np.array([one.row for one in followed], dtype=np.int64)
        known = self._rows.lengths[rows]
        ends = np.array([min(self._room(one), self._max_positions) for one in followed], dtype=np.int64)
        drafted = rounds.run(found, rows, known, ends, num_rounds)
        chosen, chances = drafted.token_ids.T.tolist(), drafted.chances.T.tolist()
        for place, draft in enumerate(growing.values()):
            followed[place].drafted = chosen[place][: min(num_rounds, int(ends[place] - known[place]))]
            for token_id, chance in zip(chosen[place], chances[place], strict=True):
                if not self._extend(draft, token_id, chance):
                    break

    def _extend(self, draft: _Growing, token_id: int, chance: float) -> bool:
        """One more token for a draft; False = it ends here."""
        return token_id < self._vocab_size and draft.extend(token_id, self._assumed_chance or chance)

    def _catch_up(self, wanted: Mapping[int, int]) -> tuple[list[RowPlan], dict[int, _Growing]]:
        """The pass that feeds what was committed since, as far as it may go, and the rows that are ready to draft."""
        growing: dict[int, _Growing] = {}
        ready: list[RowPlan] = []
        behind: list[RowPlan] = []
        budget = self._max_tokens
        for request_id, most in wanted.items():
            followed = self._followed[request_id]
            num_known = int(self._rows.lengths[followed.row])
            # The last token is fed in any case: its logits begin the draft.
            followed.num_computed = min(followed.num_computed, num_known - 1)
            followed.drafted = []
            room = min(self._room(followed), self._max_positions) - num_known + 1  # the last draft is never fed
            num_missing = num_known - followed.num_computed
            if min(room, most, budget) < 1:
                continue
            if num_missing <= budget:
                growing[request_id] = _Growing(min(most, room))
                ready.append(RowPlan(request_id, followed.num_computed, num_missing, 0, (), True, 0))
                followed.num_computed = num_known
            else:
                behind.append(RowPlan(request_id, followed.num_computed, budget, 0, (), False, 0))
                followed.num_computed += budget
            budget -= min(num_missing, budget)
        if behind and not ready:
            self._forward.run(build_inputs(StepPlan(behind), self._rows).arrays, 0)
        return ready + behind if ready else [], growing

    def _pass(self, plans: list[RowPlan], growing: dict[int, _Growing]) -> dict[int, _Growing]:
        """One more draft for each growing row, which the plans begin with; the rows that go on."""
        inputs = build_inputs(StepPlan(plans), self._rows)
        found = self._forward.run(inputs.arrays, inputs.num_wanted)
        token_ids, chances = likely_next(found, inputs.num_wanted)
        more = {}
        for (request_id, draft), token_id, chance in zip(
            growing.items(), token_ids.tolist(), chances.tolist(), strict=True
        ):
            if self._extend(draft, token_id, chance):
                more[request_id] = draft
                self._followed[request_id].drafted.append(token_id)
        if more:
            rows = np.array([self._followed[request_id].row for request_id in more], dtype=np.int64)
            fed = np.array([draft.token_ids[-1] for draft in more.values()], dtype=np.int64)
            self._rows.append_one(rows, fed)
        return more

    def _next_plan(self, request_id: int) -> RowPlan:
        """Feed the draft's last token."""
        length = int(self._rows.lengths[self._followed[request_id].row])
        return RowPlan(request_id, length - 1, 1, 0, (), True, 0)

    def _take_back(self, request_id: int, num_known: int) -> None:
        """Drafts are not committed yet."""
        self._rows.lengths[self._followed[request_id].row] = num_known

    def _room(self, followed: _Followed) -> int:
        """Tokens whose KV the lent blocks can hold."""
        return int(self._rows.num_blocks[followed.row]) * self._rows.block_size
