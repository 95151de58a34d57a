"""Sampled tokens follow the transformed softmax exactly, with and without drafts: chi-square tests over many seeds.

The expectation is computed here in float64 from the definition of every parameter, sharing no code with sample/.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from threefold.request import SamplingParams
from threefold.sample.sampler import Sampler, Wanted
from threefold.sample.table import SamplingTable
from threefold.sample.verify import ExactAcceptance
from threefold.step import NewRow

VOCAB = 12
PROMPT, OUTPUT = (1, 2, 2, 5), (3, 5, 5)
END = 11
NUM_SEEDS = 3000

WISHES = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "hot": {"temperature": 2.5},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.2},
    "all_filters": {"temperature": 1.4, "top_k": 6, "top_p": 0.85, "min_p": 0.05},
    "repetition": {"repetition_penalty": 1.8},
    "frequency": {"frequency_penalty": 0.9},
    "presence": {"presence_penalty": -1.5},
    "all_penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.7, "temperature": 0.8},
    "logit_bias": {"logit_bias": {0: 2.0, 4: -100.0, 5: 1.0}},
    "bias_and_penalties_and_filters": {
        "logit_bias": {5: 2.5, 2: 1.0},
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.3,
        "min_p": 0.05,
        "top_p": 0.9,
        "temperature": 1.2,
    },
    "allowed": {"allowed_token_ids": (0, 3, 5, 11)},
    "bad_words": {"bad_words_token_ids": ((7,), (5, 8), (3, 5, 5, 0), (4, 9))},
    "min_tokens": {"min_tokens": 5},
}


def logits_at(position, drafts):
    """The model's logits behind some drafts; it likes the next draft, so that late positions are reached often."""
    logits = np.random.default_rng(100 + position).standard_normal(VOCAB) * 1.5
    for token in drafts[position : position + 1]:
        logits[token] += 3.0
    return logits.astype(np.float32)


def expected(params, drafts, position):
    """Probabilities of the token behind PROMPT + OUTPUT + the first drafts, when the row has all of them at hand."""
    output = [*OUTPUT, *drafts[:position]]
    logits = logits_at(position, drafts).astype(np.float64)
    if params.allowed_token_ids is not None:
        logits = np.where(np.isin(np.arange(VOCAB), params.allowed_token_ids), logits, -np.inf)
    for word in params.bad_words_token_ids:
        if len(word) == 1 or output[-(len(word) - 1) :] == list(word[:-1]):
            logits[word[-1]] = -np.inf
    if len(output) < params.min_tokens:
        logits[END] = -np.inf
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    for token in set(PROMPT) | set(output):
        penalty = params.repetition_penalty
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    for token in set(output):
        logits[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    p = np.exp((logits - logits.max()) / params.temperature)
    p /= p.sum()
    p[p < params.min_p * p.max()] = 0
    if params.top_k > 0:
        p[p < np.sort(p)[-params.top_k]] = 0
    p /= p.sum()
    order = np.argsort(-p)
    num_kept = int(np.searchsorted(p[order].cumsum(), params.top_p - 1e-12)) + 1
    p[order[num_kept:]] = 0
    return p / p.sum()


def draw_many(params, drafts):
    """What NUM_SEEDS requests with these drafts at hand commit."""
    table = SamplingTable(NUM_SEEDS)
    for seed in range(NUM_SEEDS):
        table.set(seed, NewRow(seed, PROMPT + OUTPUT, len(PROMPT), params, frozenset({END}), seed))
    width = len(drafts) + 1
    one = np.stack([logits_at(position, drafts) for position in range(width)])
    logits = torch.from_numpy(np.tile(one, (NUM_SEEDS, 1)))
    wanted = Wanted(
        rows=np.arange(NUM_SEEDS),
        first=width * np.arange(NUM_SEEDS),
        num_output=np.full(NUM_SEEDS, len(OUTPUT)),
        num_drafts=np.full(NUM_SEEDS, len(drafts)),
        draft_ids=np.tile(np.array(drafts, dtype=np.int64), NUM_SEEDS),
    )
    return [row.token_ids for row in Sampler(table, ExactAcceptance()).sample(logits, wanted)]


def check(tokens, probabilities):
    """Chi-square against the expectation; impossible tokens must not occur at all."""
    counts = np.bincount(tokens, minlength=VOCAB)
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    if len(tokens) < 50:
        return
    expectation = probabilities * len(tokens)
    # Rare tokens are pooled so that the statistic is chi-square.
    common = expectation >= 8
    observed = [*counts[common], counts[~common].sum()]
    wanted = [*expectation[common], expectation[~common].sum()]
    statistic = sum((o - w) ** 2 / w for o, w in zip(observed, wanted, strict=True) if w > 0)
    degrees = max(len(wanted) - 1, 1)
    # The upper 1e-4 quantile by Wilson and Hilferty; seeds are fixed, so this passes always or never.
    limit = degrees * (1 - 2 / (9 * degrees) + 3.72 * np.sqrt(2 / (9 * degrees))) ** 3
    assert statistic < limit


@pytest.mark.parametrize("name", WISHES)
def test_one_token_follows_the_transformed_softmax(name):
    params = SamplingParams(max_tokens=50, **WISHES[name])
    tokens = [row[0] for row in draw_many(params, ())]
    check(tokens, expected(params, (), 0))


@pytest.mark.parametrize("drafts", [(5, 8, 5), (3, 3, 3), (0, 5, 9)])
@pytest.mark.parametrize("name", WISHES)
def test_every_position_behind_drafts_follows_it_given_the_drafts_before(name, drafts):
    params = SamplingParams(max_tokens=50, **WISHES[name])
    rows = draw_many(params, drafts)
    for position in range(len(drafts) + 1):
        reached = [row for row in rows if len(row) > position and tuple(row[:position]) == drafts[:position]]
        check([row[position] for row in reached], expected(params, drafts, position))
    for row in rows:
        accepted = row[:-1]
        assert tuple(accepted) == drafts[: len(accepted)]


@pytest.mark.parametrize("name", WISHES)
def test_drafts_change_no_token_of_a_seed(name):
    """The first token is the same whatever drafts stand behind it, so acceptance is exactly p(draft)."""
    params = SamplingParams(max_tokens=50, **WISHES[name])
    wrong = [row[0] for row in draw_many(params, (5, 4, 4))]
    assert [row[0] for row in draw_many(params, (5,))] == wrong
    assert [row[0] for row in draw_many(params, (5, 5, 9, 1))] == wrong
