"""Embedding and head: own rows, tied and apart, divided by vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from threefold.errors import ModelLoadError
from threefold.layers.embedding import OutputHead, VocabParallelEmbedding, Vocabulary
from threefold.parallel import single_group

WEIGHT = torch.arange(40, dtype=torch.float32).view(10, 4)


def vocabulary(group: Any) -> Vocabulary:
    return Vocabulary(10, 4, torch.float32, torch.device("cpu"), group)


def test_one_rank() -> None:
    embedding = VocabParallelEmbedding(vocabulary(single_group()))
    head = OutputHead(vocabulary(single_group()))
    assert not head.is_loaded
    embedding.load(WEIGHT)
    head.tie(embedding)
    assert head.is_loaded

    assert torch.equal(WEIGHT[[3, 0, 9]], embedding(torch.tensor([3, 0, 9])))
    torch.testing.assert_close(head(torch.ones(2, 4)), WEIGHT.sum(1).expand(2, 10))


def test_two_ranks_sum_rows_and_join_logits(ranks: Callable[[int], list[Any]]) -> None:
    ids, hidden = torch.tensor([3, 0, 9, 5]), torch.randn(2, 4)
    rows, logits = torch.zeros(4, 4), []
    for group in ranks(2):
        embedding = VocabParallelEmbedding(vocabulary(group))
        embedding.load(WEIGHT)
        rows += embedding(ids)
        head = OutputHead(vocabulary(group))
        head.load(WEIGHT)
        logits.append(head(hidden))

    assert torch.equal(WEIGHT[ids], rows)
    torch.testing.assert_close(torch.cat(logits, dim=1), hidden @ WEIGHT.T)


def test_a_wrong_shape_is_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"\[9, 4\], the model needs \[10, 4\]"):
        VocabParallelEmbedding(vocabulary(single_group())).load(WEIGHT[:9])
