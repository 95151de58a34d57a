from __future__ import annotations

import pytest
import torch

from threefold.sample.logprobs import Choice, RawLogits, token_logprobs


def test_they_are_the_log_softmax_with_ranks_and_the_most_likely():
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 3.0, -1.0]])
    expected = torch.log_softmax(logits, -1)
    first, second = token_logprobs(logits, [0, 1], [2, 0])
    assert first.token_id == 0
    assert first.logprob == pytest.approx(expected[0, 0].item())
    assert first.rank == 3
    assert [token for token, _ in first.top] == [1, 2]
    assert [value for _, value in first.top] == pytest.approx([expected[0, 1].item(), expected[0, 2].item()])
    assert second.rank == 1  # tied with the best
    assert second.top == ()


def test_more_asked_than_the_vocabulary_has():
    (entry,) = token_logprobs(torch.zeros(1, 3), [1], [20])
    assert len(entry.top) == 3


def test_kept_logits_are_those_before_the_change():
    logits = torch.tensor([[0.0, 1.0], [5.0, 1.0], [0.0, 7.0]])
    raw = RawLogits(logits, [1, 2])
    logits.zero_()
    entries = raw.report([Choice(2, 0, 1), Choice(1, 0, 0)])
    assert entries[0].logprob == pytest.approx(-7.0, abs=1e-2)
    assert entries[0].top[0][0] == 1
    assert entries[1].logprob == pytest.approx(-0.018, abs=1e-2)
    assert raw.report([]) == []
