import random

import numpy as np
import pytest

from threefold.draft.drafter import Drafter, RowDrafter, RowTexts
from threefold.draft.ngram import NgramDrafter

TEXT = [5, 6, 7, 8, 9, 10, 1, 2, 5, 6, 7]


def test_it_continues_the_last_occurrence() -> None:
    drafter: Drafter = NgramDrafter(2, 8)
    drafter.start(1, TEXT, "")
    draft = drafter.propose({1: 3})[1]
    assert draft.token_ids == [8, 9, 10]
    assert len(draft.survival) == 3


def test_output_counts_as_much_as_the_prompt() -> None:
    drafter = NgramDrafter(2, 8)
    drafter.start(1, [1, 2, 3], "")
    assert drafter.propose({1: 4}) == {}
    drafter.observe(1, [4, 1])
    drafter.observe(1, [2])
    assert drafter.propose({1: 2})[1].token_ids == [3, 4]


def test_who_has_no_match_or_wants_nothing_is_left_out() -> None:
    drafter = NgramDrafter(2, 8)
    drafter.start(1, TEXT, "")
    drafter.start(2, [1, 2, 3], "")
    drafter.start(3, [], "")
    assert set(drafter.propose({1: 2, 2: 2, 3: 2})) == {1}
    assert drafter.propose({1: 0}) == {}


def test_it_reads_rows_for_itself() -> None:
    drafter: RowDrafter = NgramDrafter(2, 8)
    drafter.start(1, TEXT, "")
    drafter.start(2, [1, 2, 3], "")
    token_ids = np.zeros((4, 20), dtype=np.int32)
    token_ids[3, : len(TEXT) + 2] = [*TEXT, 8, 9]
    token_ids[0, :5] = 1, 2, 3, 4, 5
    texts = RowTexts(token_ids, np.array([5, 0, 0, len(TEXT) + 2]), np.array([3, 0]))
    drafts = drafter.draft_rows([1, 2], np.array([3, 2]), texts)
    assert drafts.counts.tolist() == [3, 0]
    assert drafts.token_ids[0].tolist() == [10, 1, 2]
    drafter.observe(1, [10])  # of what it has read it need not be told again
    assert drafter.propose({1: 2})[1].token_ids == [1, 2]


def test_requests_share_nothing() -> None:
    drafter = NgramDrafter(2, 8)
    drafter.start(1, TEXT, "")
    drafter.start(2, [5, 6, 7], "")
    assert drafter.propose({2: 4}) == {}


def test_a_request_can_begin_again_and_stop_twice() -> None:
    drafter = NgramDrafter(2, 8)
    drafter.start(1, TEXT, "")
    drafter.stop(1)
    drafter.stop(1)
    drafter.start(1, [1, 2, 9, 1, 2], "")
    assert drafter.propose({1: 1})[1].token_ids == [9]
    with pytest.raises(KeyError):
        drafter.propose({7: 1})


def test_a_copied_text_is_drafted_right() -> None:
    """The answer repeats the prompt: almost all of it comes from drafts, and the drafter knows that they are good."""
    rng = random.Random(0)
    prompt = [rng.randrange(1000) for _ in range(400)]
    drafter = NgramDrafter(2, 8)
    drafter.start(1, prompt + prompt[:2], "")
    position, num_steps = 2, 0
    while position < 380:
        draft = drafter.propose({1: 8})[1]
        assert draft.token_ids == prompt[position : position + 8]
        drafter.observe(1, prompt[position : position + 9])
        position += 9
        num_steps += 1
    assert num_steps < 45
    assert draft.survival[0] > 0.75
