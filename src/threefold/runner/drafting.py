"""Keeps drafters from ever hurting a request: passes the four verbs on, checks what comes back, counts what went wrong.

Knows nothing about models or verification. With several drafters a row gets the draft of which most is expected to
come true, by the drafters' records; one that costs passes of its own is asked only for rows where the others are likely
to do worse.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from threefold.draft.drafter import Draft, Drafter, KVDrafter, RowDrafter, RowDrafts, RowTexts
from threefold.runner.rows import IntArray
from threefold.runner.trust import Trust

logger = logging.getLogger(__name__)

NUM_ON_THEIR_WAY = 2
"""Tokens that a row has got otherwise by the time that drafts it is asked for now would be verified."""
GLIMPSED_TOKENS = 8
"""Tokens looked ahead."""


Offer = tuple[tuple[float, ...], str]
"""What control is told of a draft: the survival of its tokens, and who made it. A plain tuple, as one is made a row."""


class Proposal(NamedTuple):
    """A draft that passed the checks, and who made it."""

    draft: Draft
    drafter: str


class Drafting:
    """All drafters of an engine, behind one face.

    Args:
        drafters: those that cost next to nothing, asked in this order; the first wins a tie.
        vocab_size: tokens beyond it are nonsense.
        model: a drafter with KV and passes of its own, asked after the others.

    Attributes:
        vocab_size: as given.
    """

    def __init__(self, drafters: Sequence[Drafter], vocab_size: int, model: KVDrafter | None = None) -> None:
        self._model = model
        self._drafters: tuple[Drafter, ...] = (*drafters, *([model] if model is not None else []))
        self.vocab_size = vocab_size
        only = drafters[0] if model is None and len(drafters) == 1 else None
        self._row_drafter = only if isinstance(only, RowDrafter) else None
        self._trust = {drafter.name: Trust() for drafter in self._drafters}
        self._proposed: dict[int, list[Proposal]] = {}  # to be judged; kept only where there is a choice
        # A drafter that failed to follow a request knows the wrong tokens; it is not asked about that request again.
        self._lost: set[tuple[str, int]] = set()
        self._logged: set[tuple[str, str]] = set()
        self._num_faults = 0

    @property
    def has_drafters(self) -> bool:
        """False where speculation is off."""
        return bool(self._drafters)

    def follows(self, drafter: str, request_id: int) -> bool:
        """Whether a drafter is to be asked about a request."""
        return (drafter, request_id) not in self._lost

    def take_num_faults(self) -> int:
        """Faults since the last call."""
        num_faults, self._num_faults = self._num_faults, 0
        return num_faults

    def start(self, request_id: int, token_ids: Sequence[int], salt: str) -> None:
        """A row was set up."""
        for drafter in self._drafters:
            self._follow(drafter, request_id, lambda d: d.start(request_id, token_ids, salt))

    def observe(self, told: Mapping[int, Sequence[int]]) -> None:
        """Rows committed these tokens."""
        for request_id, token_ids in told.items() if self._proposed else ():
            for proposal in self._proposed.pop(request_id, ()):
                self._trust[proposal.drafter].judge(proposal.draft, token_ids)
        for drafter in self._drafters:
            for request_id, token_ids in told.items():
                if self._lost and (drafter.name, request_id) in self._lost:
                    continue
                try:
                    drafter.observe(request_id, token_ids)
                except Exception as error:  # noqa: BLE001  a drafter's fault costs drafts, never a request
                    self._lose(drafter, request_id, error)

    def stop(self, request_id: int) -> None:
        """A row left."""
        self._proposed.pop(request_id, None)
        for drafter in self._drafters:
            # Also where the drafter lost track: it may hold something of the request.
            self._lost.discard((drafter.name, request_id))
            self._follow(drafter, request_id, lambda d: d.stop(request_id))
            self._lost.discard((drafter.name, request_id))

    def lend(self, request_id: int, block_ids: Sequence[int]) -> None:
        """Blocks for the draft model's KV of a row."""
        if self._model is not None:
            model = self._model
            self._follow(model, request_id, lambda _: model.lend(request_id, block_ids))

    def recall(self, request_id: int) -> None:
        """The blocks lent for a row are needed elsewhere."""
        if self._model is not None:
            model = self._model
            self._follow(model, request_id, lambda _: model.recall(request_id))

    def propose(self, wanted: Mapping[int, int]) -> dict[int, Proposal]:
        """At most one draft a request; requests without a good guess are left out.

        Args:
            wanted: most tokens to propose, by request id.
        """
        if len(self._drafters) == 1:
            (drafter,) = self._drafters
            return {key: Proposal(draft, drafter.name) for key, draft in self._ask(drafter, wanted).items()}
        best: dict[int, Proposal] = {}
        worth: dict[int, float] = {}
        for drafter in self._drafters:
            trust = self._trust[drafter.name]
            for request_id, draft in self._ask(drafter, self._hopeful(drafter, wanted, worth)).items():
                proposal = Proposal(draft, drafter.name)
                self._proposed.setdefault(request_id, []).append(proposal)
                tokens = trust.worth(draft)
                if request_id not in best or tokens > worth[request_id]:
                    best[request_id], worth[request_id] = proposal, tokens
        return best

    @property
    def can_draft_rows(self) -> bool:
        """Whether the only drafter drafts for all rows at once, and has lost track of none."""
        return self._row_drafter is not None and not self._lost

    def awaits(self, request_ids: Collection[int]) -> bool:
        """Whether an earlier draft of one of these is still to be judged by what came."""
        return bool(self._proposed) and not self._proposed.keys().isdisjoint(request_ids)

    def draft_rows(self, request_ids: Sequence[int], num_wanted: IntArray, texts: RowTexts) -> RowDrafts | None:
        """What the only drafter drafts for rows, whose texts it reads itself; as yet unchecked. None = it failed."""
        drafter = self._row_drafter
        assert drafter is not None
        try:
            return drafter.draft_rows(request_ids, num_wanted, texts)
        except Exception as error:  # noqa: BLE001  a drafter's fault costs drafts, never a request
            for request_id in request_ids:  # nobody knows how far it came
                self._lose(drafter, request_id, error)
        return None

    def offers(self, request_ids: Sequence[int], drafts: RowDrafts) -> dict[int, Offer]:
        """What control is told of such drafts, once they are checked."""
        assert self._row_drafter is not None
        name = self._row_drafter.name
        found = zip(request_ids, drafts.survival.tolist(), drafts.counts.tolist(), strict=True)
        return {request_id: (tuple(chances[:num]), name) for request_id, chances, num in found if num}

    def glimpse(self, request_ids: Collection[int]) -> dict[int, float]:
        """Drafts that can be expected to come true if these rows were asked; 0 where nothing is in sight.

        The text is what it was a step ago, and nothing is kept; only for drafters without passes of their own.
        """
        seen = dict.fromkeys(request_ids, 0.0)
        wanted = dict.fromkeys(request_ids, GLIMPSED_TOKENS)
        for drafter in self._drafters:
            trust = self._trust[drafter.name]
            for request_id, draft in self._ask(drafter, wanted).items():
                self._proposed.setdefault(request_id, []).append(Proposal(draft, drafter.name))
                rest = Draft(draft.token_ids[NUM_ON_THEIR_WAY:], draft.survival[NUM_ON_THEIR_WAY:])
                seen[request_id] = max(seen[request_id], trust.worth(rest))
        return seen

    @property
    def can_glimpse(self) -> bool:
        """Whether all drafters only look things up."""
        return bool(self._drafters) and self._model is None

    def _hopeful(self, drafter: Drafter, wanted: Mapping[int, int], worth: Mapping[int, float]) -> Mapping[int, int]:
        """The rows for which the drafter is worth asking, given what the ones before it came up with."""
        typical = self._trust[drafter.name].typical_worth
        if drafter is not self._model or typical is None:
            return wanted
        return {key: num for key, num in wanted.items() if worth.get(key, 0.0) < min(typical, num)}

    def _ask(self, drafter: Drafter, wanted: Mapping[int, int]) -> dict[int, Draft]:
        if self._lost:
            wanted = {key: num for key, num in wanted.items() if (drafter.name, key) not in self._lost}
        try:
            return self._checked(drafter, drafter.propose(wanted), wanted)
        except Exception as error:  # noqa: BLE001  a drafter's fault costs a draft, never a request
            if len(wanted) == 1:
                self.count_fault(drafter.name, "raised in propose", repr(error))
                return {}
        # Ask one by one, so that only the rows at fault go without.
        return {key: draft for row in wanted.items() for key, draft in self._ask(drafter, dict([row])).items()}

    def _checked(self, drafter: Drafter, drafts: Mapping[int, Draft], wanted: Mapping[int, int]) -> dict[int, Draft]:
        sound = {}
        for request_id, draft in drafts.items():
            if not draft.token_ids:
                continue
            fault = self._fault(draft, wanted.get(request_id, 0))
            if fault is None:
                sound[request_id] = draft
            else:
                self.count_fault(drafter.name, *fault)
        return sound

    def _fault(self, draft: Draft, max_tokens: int) -> tuple[str, str] | None:
        """(kind, detail) of what is wrong with a draft."""
        token_ids, survival = draft
        if len(token_ids) > max_tokens:
            return "proposed too many tokens", f"{len(token_ids)}, {max_tokens} were wanted"
        if not (min(token_ids) >= 0 and max(token_ids) < self.vocab_size):
            return "proposed a token outside the vocabulary", f"{token_ids}, vocabulary of {self.vocab_size}"
        # The sum is for what is no number: only it is sure to come through there.
        are_shares = bool(survival) and min(survival) >= 0.0 and max(survival) <= 1.0 and sum(survival) >= 0.0
        if len(survival) != len(token_ids) or not are_shares:
            return "gave unusable survival estimates", f"{survival} for {len(token_ids)} tokens"
        return None

    def _follow(self, drafter: Drafter, request_id: int, verb: Callable[[Drafter], None]) -> None:
        if (drafter.name, request_id) in self._lost:
            return
        try:
            verb(drafter)
        except Exception as error:  # noqa: BLE001  a drafter's fault costs drafts, never a request
            self._lose(drafter, request_id, error)

    def _lose(self, drafter: Drafter, request_id: int, error: Exception) -> None:
        self._lost.add((drafter.name, request_id))
        self.count_fault(drafter.name, "raised while following a request", repr(error))

    def count_unusable(self, num_rows: int) -> None:
        """Drafts made for rows all at once were nonsense in so many of them."""
        assert self._row_drafter is not None
        for _ in range(num_rows):
            self.count_fault(self._row_drafter.name, "proposed nonsense", "a draft too long, or values out of range")

    def count_fault(self, drafter: str, kind: str, detail: str) -> None:
        """A drafter did something wrong; said once of each kind."""
        self._num_faults += 1
        if (drafter, kind) not in self._logged:
            self._logged.add((drafter, kind))
            logger.warning("drafter %s %s (%s); the rows concerned go on without drafts", drafter, kind, detail)
