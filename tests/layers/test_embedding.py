"""Embedding and head: own rows, tied and apart, divided by vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from threefold.errors import ModelLoadError
from threefold.layers.embedding import OutputHead, VocabParallelEmbedding
from threefold.parallel import single_group

CPU: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
WEIGHT = torch.arange(40, dtype=torch.float32).view(10, 4)


def test_one_rank() -> None:
    embedding = VocabParallelEmbedding(10, 4, group=single_group(), **CPU)
    head = OutputHead(10, 4, group=single_group(), **CPU)
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
        embedding = VocabParallelEmbedding(10, 4, group=group, **CPU)
        embedding.load(WEIGHT)
        rows += embedding(ids)
        head = OutputHead(10, 4, group=group, **CPU)
        head.load(WEIGHT)
        logits.append(head(hidden))

    assert torch.equal(WEIGHT[ids], rows)
    torch.testing.assert_close(torch.cat(logits, dim=1), hidden @ WEIGHT.T)


def test_a_wrong_shape_is_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"\[9, 4\], the model needs \[10, 4\]"):
        VocabParallelEmbedding(10, 4, group=single_group(), **CPU).load(WEIGHT[:9])
