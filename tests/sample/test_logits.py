from __future__ import annotations

import numpy as np
import pytest
import torch

from threefold.request import SamplingParams
from threefold.sample.logits import Window, transform
from threefold.sample.transforms import Transforms, wishes_any

VOCAB = 10
INF = float("inf")


def window(first=0, drafts=(), prompt=(1, 2), output=(), end=frozenset({9}), **wishes):
    params = SamplingParams(max_tokens=100, **wishes)
    return Window(Transforms(params, end, (*prompt, *output), len(prompt)), first, len(output), list(drafts))


def apply(*windows, num_positions=1, start=1.0):
    logits = torch.full((num_positions, VOCAB), start)
    transform(logits, windows)
    return logits


def banned(row):
    return set(torch.nonzero(row == -INF).squeeze(1).tolist())


def test_only_allowed_tokens_keep_their_logits():
    logits = apply(window(first=1, allowed_token_ids=(3, 5, 3)), num_positions=3)
    assert banned(logits[1]) == set(range(VOCAB)) - {3, 5}
    assert banned(logits[0]) == banned(logits[2]) == set()


def test_min_tokens_counts_drafts_as_output():
    logits = apply(window(drafts=(4, 4), output=(4,), min_tokens=3), num_positions=3)
    assert [banned(row) for row in logits] == [{9}, {9}, set()]


def test_bad_words_match_across_output_and_drafts_but_not_into_the_prompt():
    words = ((7,), (2, 6), (4, 5, 8))
    logits = apply(window(drafts=(4, 5), prompt=(2,), output=(), bad_words_token_ids=words), num_positions=3)
    assert [banned(row) for row in logits] == [{7}, {7}, {7, 8}]
    logits = apply(window(drafts=(5,), prompt=(1,), output=(4,), bad_words_token_ids=words), num_positions=2)
    assert [banned(row) for row in logits] == [{7}, {7, 8}]


def test_a_bad_word_longer_than_the_output_is_not_matched():
    logits = apply(window(output=(5,), bad_words_token_ids=((4, 5, 8), (5, 1))))
    assert banned(logits[0]) == {1}


def test_logit_bias_is_added_before_penalties():
    logits = apply(window(output=(3,), logit_bias={3: 2.0, 4: -100.0}, repetition_penalty=2.0))
    assert logits[0, 3] == 1.5
    assert logits[0, 4] == -99.0
    assert logits[0, 1] == 0.5  # in the prompt
    assert logits[0, 5] == 1.0


def test_penalties_count_each_draft_before_a_position():
    logits = apply(window(drafts=(3, 4), output=(3,), frequency_penalty=1.0, presence_penalty=0.5), num_positions=3)
    assert logits[:, 3].tolist() == [1 - 1.5, 1 - 2.5, 1 - 2.5]
    assert logits[:, 4].tolist() == [1, 1, 1 - 1.5]
    assert logits[:, 1].tolist() == [1, 1, 1]  # the prompt counts for repetition alone


def test_repetition_penalty_multiplies_negative_logits():
    assert apply(window(repetition_penalty=2.0), start=-1.0)[0, 1] == -2.0


def test_masked_tokens_stay_masked_under_penalties():
    logits = apply(window(prompt=(7,), output=(7,), bad_words_token_ids=((7,),), repetition_penalty=1.5))
    assert banned(logits[0]) == {7}
    assert not torch.isnan(logits).any()


def test_rows_do_not_touch_each_other():
    windows = [window(first=0, logit_bias={0: 5.0}), window(first=2, drafts=(1,), frequency_penalty=1.0)]
    logits = apply(*windows, num_positions=5)
    expected = np.ones((5, VOCAB))
    expected[0, 0] = 6
    expected[3, 1] = 0
    assert logits.numpy().tolist() == expected.tolist()


def test_committed_tokens_join_the_history():
    transforms = window(prompt=(1,), frequency_penalty=1.0, bad_words_token_ids=((4, 5),)).transforms
    transforms.observe([3, 4])
    logits = torch.ones(1, VOCAB)
    transform(logits, [Window(transforms, 0, 2, [])])
    assert logits[0, 3] == logits[0, 4] == 0
    assert banned(logits[0]) == {5}


@pytest.mark.parametrize(
    "wish",
    [
        {"min_tokens": 1},
        {"logit_bias": {1: 1.0}},
        {"allowed_token_ids": (1,)},
        {"bad_words_token_ids": ((1,),)},
        {"repetition_penalty": 1.1},
        {"frequency_penalty": 0.1},
        {"presence_penalty": -0.1},
    ],
)
def test_whoever_wishes_something_of_the_logits_is_known(wish):
    assert wishes_any(SamplingParams(**wish), frozenset({9}))


def test_most_wish_nothing_of_the_logits():
    assert not wishes_any(SamplingParams(top_k=3, logprobs=2, seed=5), frozenset({9}))
    assert not wishes_any(SamplingParams(min_tokens=1), frozenset()), "nothing that ends it is to be kept away"
