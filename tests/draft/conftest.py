"""A draft model of random weights, small enough to be asked token by token, without a cache, what it says."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from threefold.draft.draft_model import LEAST_SURVIVAL
from threefold.layers.attention import allocate_kv
from threefold.layers.batch import Batch
from threefold.models.decoder import Decoder
from threefold.models.shapes import expected_shapes
from threefold.models.spec import ModelSpec

VOCAB, BLOCK, CPU = 50, 4, torch.device("cpu")


def _spec(num_layers: int, num_kv_heads: int) -> ModelSpec:
    return ModelSpec(
        architecture="tiny",
        vocab_size=VOCAB,
        hidden_size=32,
        num_layers=num_layers,
        num_heads=4,
        num_kv_heads=num_kv_heads,
        head_dim=8,
        intermediate_size=64,
        max_positions=64,
        has_tied_head=True,
    )


@pytest.fixture(scope="session")
def decoder() -> Decoder:
    small = _spec(num_layers=2, num_kv_heads=1)
    dice = torch.Generator().manual_seed(5)
    weights = {
        name: torch.ones(shape)
        if len(shape) == 1
        else torch.randn(shape, generator=dice) * (1.5 if "embed" in name else 2 / math.sqrt(shape[1]))
        for name, shape in expected_shapes(small).items()
    }
    made = Decoder(small, torch.float32, CPU)
    made.load(weights.items())
    return made


@pytest.fixture(scope="session")
def target_spec() -> ModelSpec:
    """A model whose KV memory the draft model's lies in."""
    return _spec(num_layers=3, num_kv_heads=4)


@pytest.fixture(scope="session")
def alone(decoder: Decoder) -> Callable[[list[int], int], tuple[list[int], list[float]]]:
    """What the model says by itself, without any cache: its greedy continuation and how sure it is of all so far."""

    def say(token_ids: list[int], num_tokens: int) -> tuple[list[int], list[float]]:
        text = list(token_ids)
        survival = [1.0]
        for _ in range(num_tokens):
            kv = allocate_kv(decoder.spec, 20, BLOCK, torch.float32, CPU)
            n = len(text)
            batch = Batch(
                token_ids=torch.tensor(text),
                positions=torch.arange(n),
                slots=torch.arange(n),
                row_starts=torch.tensor([0, n], dtype=torch.int32),
                context_lens=torch.tensor([n], dtype=torch.int32),
                block_tables=torch.arange(20, dtype=torch.int32)[None],
                logit_tokens=torch.tensor([n - 1]),
                max_new=n,
                max_context=n,
            )
            chances = decoder.logits(decoder.forward(batch, kv))[0].softmax(-1)
            text.append(int(chances.argmax()))
            survival.append(survival[-1] * min(float(chances.max()), 0.99))
        return text[len(token_ids) :], survival[1:]

    return say


@pytest.fixture(scope="session")
def expected(
    alone: Callable[[list[int], int], tuple[list[int], list[float]]],
) -> Callable[[list[int], int], list[int]]:
    """The draft that a drafter over the model should make."""

    def draft(token_ids: list[int], most: int) -> list[int]:
        tokens, survival = alone(token_ids, most)
        return [token for token, alive in zip(tokens, survival, strict=True) if alive >= LEAST_SURVIVAL]

    return draft
