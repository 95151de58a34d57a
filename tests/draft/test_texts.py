"""Texts in one array are searched as each would be by itself."""

from __future__ import annotations

import random

import pytest

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
