"""A drafter that reads rows itself hears and says what one does that is told and asked."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from threefold.draft.drafter import RowDrafter, RowDrafts
from threefold.draft.ngram import NgramDrafter
from threefold.draft.suffix import SuffixDrafter
from threefold.runner.drafting import Drafting
from threefold.runner.proposing import Proposing
from threefold.runner.rows import Rows

VOCAB = 32


class Told:
    """A drafter with the four verbs alone."""

    def __init__(self, make_drafter: type[NgramDrafter | SuffixDrafter]) -> None:
        drafter = make_drafter(2, 5)
        self.name = drafter.name
        self.start, self.observe = drafter.start, drafter.observe
        self.propose, self.stop = drafter.propose, drafter.stop


class Keeping(NgramDrafter):
    """Keeps what it is told at first."""

    def __init__(self) -> None:
        super().__init__(2, 5)
        self.told: Sequence[int] = ()

    def start(self, request_id, token_ids, salt):
        self.told = token_ids


class Broken(NgramDrafter):
    """Fails, or says nonsense, when it is asked for rows."""

    def __init__(self) -> None:
        super().__init__(2, 5)
        self.nonsense: RowDrafts | None = None

    def draft_rows(self, request_ids, num_wanted, texts):
        if self.nonsense is None:
            raise LookupError("broken")
        return self.nonsense


def make(drafter, rows):
    drafting = Drafting([drafter], VOCAB)
    return Proposing(rows, drafting), drafting


@pytest.mark.parametrize("make_drafter", [NgramDrafter, SuffixDrafter])
@pytest.mark.parametrize("seed", range(4))
def test_reading_rows_is_as_being_told(seed, make_drafter, new_row):
    dice = random.Random(seed)
    many = [Rows(max_rows=4, max_tokens=400, block_size=4, max_draft=3) for _ in range(2)]
    both = [make(drafter, rows) for drafter, rows in zip((make_drafter(2, 5), Told(make_drafter)), many, strict=True)]
    assert [drafting.can_draft_rows for _, drafting in both] == [True, False]
    here: list[int] = []
    for step in range(120):
        if len(here) < 4 and dice.random() < 0.3:
            new = new_row(step, [dice.randrange(3) for _ in range(dice.choice([1, 9, 40]))])
            here.append(step)
            for rows, (proposing, _) in zip(many, both, strict=True):
                rows.add(new)
                proposing.start(new)
        elif here and dice.random() < 0.1:
            gone = here.pop(dice.randrange(len(here)))
            for rows, (proposing, _) in zip(many, both, strict=True):
                proposing.stop(gone)
                rows.drop(gone)
        said = {request_id: [dice.randrange(3) for _ in range(dice.randint(1, 3))] for request_id in here}
        asked = {request_id: dice.randint(1, 3) for request_id in here if dice.random() < 0.7}
        is_looking = dice.random() < 0.3
        answers = []
        for rows, (proposing, drafting) in zip(many, both, strict=True):
            if said:
                rows.append_many(rows.find_all(said), list(said.values()))
            seen = proposing.glimpse(here) if is_looking and here else {}
            offers = proposing.propose(asked)
            at_hand = [rows.draft(rows.find(key), int(rows.num_drafts[rows.find(key)])) for key in here]
            answers.append((seen, offers, at_hand, drafting.take_num_faults()))
        assert answers[0] == answers[1]


def test_what_a_drafter_is_told_is_not_the_rows_memory(rows, new_row):
    drafter = Keeping()
    proposing, _ = make(drafter, rows)
    new = new_row(1, (1, 2, 3))
    row = rows.add(new)
    proposing.start(new)
    rows.token_ids[row] = 0
    assert list(drafter.told) == [1, 2, 3]


@pytest.mark.parametrize("is_nonsense", [False, True])
def test_a_fault_costs_drafts_alone(rows, new_row, is_nonsense):
    drafter = Broken()
    proposing, drafting = make(drafter, rows)
    assert isinstance(drafter, RowDrafter)
    for request_id in (1, 2):
        new = new_row(request_id, (1, 2, 3, 1, 2))
        rows.add(new)
        proposing.start(new)
    if is_nonsense:
        ids = np.array([[VOCAB, 1], [3, 1]], dtype=np.int32)
        drafter.nonsense = RowDrafts(ids, np.full((2, 2), 0.5), np.array([2, 2]))
        assert proposing.propose({1: 2, 2: 2}) == {2: ((0.5, 0.5), "ngram")}
        assert drafting.take_num_faults() == 1
        assert drafting.can_draft_rows
        return
    assert proposing.propose({1: 2, 2: 2}) == {}
    assert drafting.take_num_faults() == 2
    assert not drafting.can_draft_rows, "it may know half of what these rows said"
    assert proposing.propose({1: 2, 2: 2}) == {}
    new = new_row(3, (1, 2, 3, 1, 2))
    rows.add(new)
    proposing.start(new)
    assert proposing.propose({3: 1})[3][1] == "ngram", "others are told and asked"
    for request_id in (1, 2):
        proposing.stop(request_id)
        rows.drop(request_id)
    assert drafting.can_draft_rows


def test_only_a_drafter_alone_reads_rows(rows):
    assert not Drafting([NgramDrafter(2, 5), Told(NgramDrafter)], VOCAB).can_draft_rows
    assert not Drafting([Told(NgramDrafter)], VOCAB).can_draft_rows
    assert not Drafting([], VOCAB).can_draft_rows
