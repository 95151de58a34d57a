"""Embedding and head: own rows, tied and apart, divided by vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from threefold.errors import ModelLoadError
from threefold.kernels.int8 import quantise_rows
from threefold.layers.embedding import OutputHead, VocabParallelEmbedding, Vocabulary
from threefold.layers.int8 import Int8WhileLoading
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


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_int8_rows_are_the_same_however_many_ranks_divide_them(
    num_ranks: int, ranks: Callable[[int], list[Any]]
) -> None:
    ids, hidden = torch.tensor([3, 0, 9, 5]), torch.randn(2, 4)
    rounded = quantise_rows(WEIGHT).dequantised(torch.float32)
    rows, logits, tied_logits = torch.zeros(4, 4), [], []
    for group in ranks(num_ranks):
        embedding = VocabParallelEmbedding(vocabulary(group), Int8WhileLoading())
        embedding.load(WEIGHT.bfloat16())
        rows += embedding(ids)
        head, tied = (OutputHead(vocabulary(group), Int8WhileLoading()) for _ in range(2))
        head.load(WEIGHT)
        tied.tie(embedding)
        logits.append(head(hidden))
        tied_logits.append(tied(hidden))

    assert torch.equal(rounded[ids], rows)
    torch.testing.assert_close(torch.cat(logits, dim=1), hidden @ rounded.T)
    torch.testing.assert_close(torch.cat(tied_logits, dim=1), hidden @ rounded.T)


@pytest.mark.parametrize("scheme", [None, Int8WhileLoading()])
def test_a_wrong_shape_is_refused(scheme: Int8WhileLoading | None) -> None:
    with pytest.raises(ModelLoadError, match=r"\[9, 4\], the model needs \[10, 4\]"):
        VocabParallelEmbedding(vocabulary(single_group()), scheme).load(WEIGHT[:9])


def test_other_tensors_than_a_plain_weight_are_refused() -> None:
    with pytest.raises(ModelLoadError, match="has weight and no weight_scale"):
        OutputHead(vocabulary(single_group()), Int8WhileLoading()).load(WEIGHT, "weight_scale")
