"""Texts in one array are searched as each would be by itself."""

from __future__ import annotations

import random

import numpy as np
import pytest

from threefold.draft.drafter import Draft, RowTexts
from threefold.draft.match import MatchIndex
from threefold.draft.texts import Texts


@pytest.mark.parametrize("limits", [(1, 4), (2, 8), (3, 3)])
@pytest.mark.parametrize("seed", range(6))
def test_a_search_of_many_is_one_of_each(limits: tuple[int, int], seed: int) -> None:
    dice = random.Random(seed)
    texts, alone = Texts(*limits), {}
    for _ in range(120):
        verb = dice.random()
        if verb < 0.15 or not alone:
            given = [dice.randrange(4) for _ in range(dice.choice([0, 1, 5, 90, 400]))]
            slot = texts.add(given)
            assert slot not in alone
            alone[slot] = MatchIndex(*limits)
            alone[slot].extend(given)
        elif verb < 0.25:
            slot = dice.choice(list(alone))
            texts.drop(slot)
            del alone[slot]
        else:
            for slot in dice.sample(list(alone), dice.randint(1, len(alone))):
                more = [dice.randrange(4) for _ in range(dice.choice([1, 3, 40]))]
                texts.extend(slot, more)
                alone[slot].extend(more)
        slots = dice.sample(list(alone), dice.randint(0, len(alone)))
        wanted = [dice.randint(1, 6) for _ in slots]
        expected = [alone[slot].find(alone[slot], num) for slot, num in zip(slots, wanted, strict=True)]
        assert texts.search(slots, wanted) == [None if found is None else found.draft for found in expected]


@pytest.mark.parametrize("seed", range(6))
def test_texts_kept_elsewhere_are_followed_and_searched_as_those_here(seed: int) -> None:
    dice = random.Random(seed)
    here, elsewhere = Texts(2, 5), Texts(2, 5)
    rows = RowTexts(np.zeros((6, 900), dtype=np.int32), np.zeros(6, dtype=np.int64), np.empty(0, dtype=np.int64))
    slots = []
    for row in range(6):
        given = [dice.randrange(4) for _ in range(dice.choice([1, 5, 90]))]
        slots.append((here.add(given), elsewhere.add(given)))
        rows.token_ids[row, : len(given)], rows.lengths[row] = given, len(given)
    for _ in range(40):
        for row in range(6):  # some go on that are not asked
            more = [dice.randrange(4) for _ in range(dice.choice([0, 1, 3, 20]))]
            here.extend(slots[row][0], more)
            rows.token_ids[row, rows.lengths[row] : rows.lengths[row] + len(more)] = more
            rows.lengths[row] += len(more)
        asked = dice.sample(range(6), dice.randint(0, 6))
        wanted = [dice.randint(1, 6) for _ in asked]
        found = elsewhere.search_rows(
            np.array([slots[row][1] for row in asked], dtype=np.int64),
            np.array(wanted, dtype=np.int64),
            rows._replace(rows=np.array(asked, dtype=np.int64)),
        )
        expected = here.search([slots[row][0] for row in asked], wanted)
        for i, draft in enumerate(expected):
            num = int(found.counts[i])
            ids, survival = found.token_ids[i, :num].tolist(), tuple(found.survival[i, :num].tolist())
            assert (Draft(ids, survival) if num else None) == draft
