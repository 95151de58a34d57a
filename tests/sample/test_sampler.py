from __future__ import annotations

import numpy as np
import pytest
import torch

from threefold.request import SamplingParams
from threefold.sample.sampler import NOT_FINITE, NOTHING_LEFT, Sampler, Wanted, most_likely
from threefold.sample.table import SamplingTable
from threefold.sample.verify import ExactAcceptance
from threefold.step import NewRow

VOCAB = 20


@pytest.fixture
def table():
    return SamplingTable(8)


def sampler_for(table, *wishes):
    for row, wish in enumerate(wishes):
        params = SamplingParams(max_tokens=100, **wish)
        table.set(row, NewRow(row, (1, 2, 3), 3, params, frozenset({0}), seed=row))
    return Sampler(table, ExactAcceptance())


def wanted(*drafts, num_output=0):
    num_drafts = np.array([len(each) for each in drafts])
    first = np.cumsum([0, *(num_drafts + 1)])[:-1]
    draft_ids = np.array([token_id for each in drafts for token_id in each], dtype=np.int64)
    return Wanted(np.arange(len(drafts)), first, np.full(len(drafts), num_output), num_drafts, draft_ids)


def random_logits(num):
    return torch.randn(num, VOCAB, generator=torch.Generator().manual_seed(num))


def test_greedy_rows_take_the_most_likely_token_and_verify_drafts(table):
    sampler = sampler_for(table, {"temperature": 0.0}, {"temperature": 0.0}, {"temperature": 0.0})
    logits = random_logits(6)
    best = logits.argmax(-1).tolist()
    right, wrong = best[1:3], [(best[5 - 1] + 1) % VOCAB]
    rows = sampler.sample(logits, wanted([], right, wrong))
    assert [row.token_ids for row in rows] == [[best[0]], best[1:4], [best[4]]]
    assert all(row.error is None and row.logprobs is None for row in rows)


def test_top_k_one_and_tiny_temperatures_are_greedy(table):
    sampler = sampler_for(table, {"top_k": 1}, {"temperature": 1e-7})
    logits = random_logits(2)
    best = logits.argmax(-1).tolist()
    assert [row.token_ids for row in sampler.sample(logits, wanted([], []))] == [[best[0]], [best[1]]]


def test_mixed_batches_give_each_row_what_it_gets_alone(table):
    wishes = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.0, "logit_bias": {4: 9.0}},
        {"temperature": 0.5, "top_p": 0.8, "frequency_penalty": 1.0, "logprobs": 3},
    ]
    drafts = [[], [3], [4, 4], [1, 2, 3]]
    logits = random_logits(10)
    together = sampler_for(table, *wishes).sample(logits.clone(), wanted(*drafts))
    start = 0
    for row, (wish, draft) in enumerate(zip(wishes, drafts, strict=True)):
        alone = SamplingTable(1)
        alone.set(0, NewRow(0, (1, 2, 3), 3, SamplingParams(max_tokens=100, **wish), frozenset({0}), seed=row))
        mine = logits[start : start + len(draft) + 1].clone()
        (result,) = Sampler(alone, ExactAcceptance()).sample(mine, wanted(draft))
        assert result == together[row]
        start += len(draft) + 1


def test_logprobs_are_the_models_own_whatever_the_wishes(table):
    sampler = sampler_for(table, {"temperature": 0.3, "logit_bias": {5: 50.0}, "logprobs": 2}, {"temperature": 0.0})
    logits = random_logits(2)
    expected = torch.log_softmax(logits, -1)
    first, second = sampler.sample(logits.clone(), wanted([], []))
    assert first.token_ids == [5]
    assert first.logprobs[0].logprob == pytest.approx(expected[0, 5].item(), abs=1e-5)
    assert [token for token, _ in first.logprobs[0].top] == expected[0].topk(2).indices.tolist()
    assert second.logprobs is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("wish", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "logprobs": 1}])
def test_logits_that_are_no_numbers_fail_their_row_alone(table, bad, wish):
    sampler = sampler_for(table, wish, wish, wish)
    logits = random_logits(3)
    logits[1, 7] = bad
    rows = sampler.sample(logits, wanted([], [], []))
    assert [row.error for row in rows] == [None, NOT_FINITE, None]
    assert [len(row.token_ids) for row in rows] == [1, 0, 1]


def test_all_rows_bad(table):
    sampler = sampler_for(table, {"temperature": 1.0, "logprobs": 0}, {"temperature": 1.0})
    rows = sampler.sample(torch.full((2, VOCAB), float("nan")), wanted([], []))
    assert [row.error for row in rows] == [NOT_FINITE, NOT_FINITE]


def test_a_fault_behind_accepted_drafts_keeps_what_came_before(table):
    sampler = sampler_for(table, {"temperature": 0.0})
    logits = random_logits(3)
    drafts = logits.argmax(-1).tolist()[:2]
    logits[2] = float("nan")
    (row,) = sampler.sample(logits, wanted(drafts))
    assert row.token_ids == drafts
    assert row.error is None


def test_a_fault_behind_a_rejected_draft_does_not_matter(table):
    sampler = sampler_for(table, {"temperature": 0.0})
    logits = random_logits(2)
    best = int(logits[0].argmax())
    logits[1] = float("nan")
    (row,) = sampler.sample(logits, wanted([(best + 1) % VOCAB]))
    assert row.token_ids == [best]


def test_wishes_that_leave_no_token_fail_the_row_and_say_why(table):
    sampler = sampler_for(table, {"allowed_token_ids": (0,), "min_tokens": 2}, {"temperature": 0.0})
    rows = sampler.sample(random_logits(2), wanted([], []))
    assert [row.error for row in rows] == [NOTHING_LEFT, None]


def test_most_likely_reports_nan(table):
    logits = random_logits(2)
    logits[0, 3] = float("nan")
    tokens, values, _ = most_likely(logits)
    assert values[0].isnan()
    assert tokens[1] == int(logits[1].argmax())


def test_seeded_draws_do_not_depend_on_the_place_in_the_batch(table):
    sampler = sampler_for(table, *[{"temperature": 1.0}] * 4)
    logits = random_logits(1).repeat(4, 1)
    forward = [row.token_ids for row in sampler.sample(logits.clone(), wanted([], [], [], []))]
    turned = wanted([], [], [], [])
    turned.rows = np.array([3, 2, 1, 0])
    backward = [row.token_ids for row in sampler.sample(logits.clone(), turned)]
    assert forward == backward[::-1]
    later = [row.token_ids for row in sampler.sample(logits.clone(), wanted([], [], [], [], num_output=1))]
    assert later != forward
