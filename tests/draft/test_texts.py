"""Texts in a few arrays are searched as each would be by itself."""

from __future__ import annotations

import random

import numpy as np
import pytest

from threefold.draft import texts as module
from threefold.draft.drafter import Draft, RowTexts
from threefold.draft.texts import Beside, Texts


def found(texts: Texts, slots: list[int], wanted: list[int], *more: object) -> dict[int, Draft]:
    """The drafts by place."""
    longs = np.array(slots, dtype=np.int64), np.array(wanted, dtype=np.int64)
    return texts.search(*longs, *more).by_request(range(len(slots)))


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
            alone[slot] = Texts(*limits)
            alone[slot].add(given)
        elif verb < 0.25:
            slot = dice.choice(list(alone))
            texts.drop(slot)
            del alone[slot]
        else:
            for slot in dice.sample(list(alone), dice.randint(1, len(alone))):
                more = [dice.randrange(4) for _ in range(dice.choice([1, 3, 40]))]
                texts.extend(slot, more)
                alone[slot].extend(0, more)
        slots = dice.sample(list(alone), dice.randint(0, len(alone)))
        wanted = [dice.randint(1, 6) for _ in slots]
        one_by_one = [found(alone[slot], [0], [num]) for slot, num in zip(slots, wanted, strict=True)]
        assert found(texts, slots, wanted) == {place: drafts[0] for place, drafts in enumerate(one_by_one) if drafts}


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
        kept = rows._replace(rows=np.array(asked, dtype=np.int64))
        expected = found(here, [slots[row][0] for row in asked], wanted)
        assert found(elsewhere, [slots[row][1] for row in asked], wanted, kept) == expected


def test_each_is_looked_for_in_its_own_text_and_in_what_is_beside_it() -> None:
    texts, common, apart = Texts(2, 8), Texts(2, 8), Texts(2, 8)
    slots = [texts.add(tokens) for tokens in ([1, 2, 50, 1, 2], [7, 1, 2], [9, 7, 1, 2], [1, 2], [7, 1, 2])]
    first, second = common.add([1, 2, 51, 7, 1, 2, 61]), common.add([7, 1, 2, 62, 9, 7, 1, 2, 63])
    besides = [
        Beside(np.array([0, 2, 1]), common, np.array([first, second])),
        Beside(np.array([4]), apart, np.array([apart.add([1, 2, 71])])),
        Beside(np.array([3]), texts, module.NO_SLOTS),
    ]
    drafts = found(texts, slots, [1] * 5, None, besides)
    assert {place: draft.token_ids for place, draft in drafts.items()} == {0: [50], 1: [61], 2: [63], 4: [71]}
    common.extend(second, [*range(300, 300 + module.LEAST_ROOM), 7, 1, 2, 81])  # it gets other arrays
    for others, token_id in ((np.array([first, second]), 61), (np.array([second]), 81)):
        beside = Beside(np.array([0]), common, others)
        assert found(texts, slots[1:2], [1], None, [beside])[0].token_ids == [token_id]


def test_more_slots_leave_tables_as_they_are() -> None:
    texts = Texts(2, 8)
    slot = texts.add([1, 2, 3, 1, 2])
    found(texts, [slot], [1])
    indexed = texts.tables[2][slot]
    assert indexed == 5
    others = [texts.add([4, 5]) for _ in range(5)]
    assert texts.tables[2][slot] == indexed
    assert found(texts, [slot, *others], [1] * 6) == {0: Draft([3], found(texts, [slot], [1])[0].survival)}


def test_it_is_compiled_for_one_kind_of_call() -> None:
    """What prepare() calls is all that a step may ask, so none waits for the compiler."""
    module.prepare()
    signatures = list(module._search.signatures)
    texts, memory = Texts(2, 8), Texts(1, 4)
    slots, rows = (
        [texts.add([1, 2, 3, 1, 2])],
        RowTexts(np.ones((1, 9), np.int32), np.full(1, 9), np.zeros(1, np.int64)),
    )
    found(texts, slots, [2], rows, [Beside(np.array([0]), memory, np.array([memory.add([])]))])
    assert module._search.signatures == signatures
    assert len(signatures) == 1
