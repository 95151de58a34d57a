from __future__ import annotations

import pytest
import torch

from threefold.request import SamplingParams
from threefold.runner.device import CpuDevice
from threefold.runner.rows import Rows
from threefold.step import NewRow, RowPlan

VOCAB = 32


class CountingModel:
    """The token after t is t + 1, and the hidden state is the token itself; KV is not looked at."""

    def __init__(self):
        self.batches = []

    def forward(self, batch, kv):
        self.batches.append(batch)
        return batch.token_ids[batch.logit_tokens].unsqueeze(1)

    def logits(self, hidden):
        logits = torch.zeros(len(hidden), VOCAB)
        logits[torch.arange(len(hidden)), (hidden[:, 0] + 1) % VOCAB] = 5.0
        return logits


@pytest.fixture
def model():
    return CountingModel()


@pytest.fixture
def device():
    return CpuDevice(1)


@pytest.fixture
def rows():
    return Rows(max_rows=4, max_tokens=40, block_size=4, max_draft=3)


@pytest.fixture
def new_row():
    def make(request_id, token_ids=(1, 2, 3), num_prompt=None, **params):
        wishes = SamplingParams(**{"temperature": 0.0, "max_tokens": 30, **params})
        size = len(token_ids) if num_prompt is None else num_prompt
        return NewRow(request_id, tuple(token_ids), size, wishes, frozenset({0}), seed=request_id)

    return make


@pytest.fixture
def plan_row():
    def make(request_id, num_computed, num_new, max_draft=0, blocks=(), wants=True, next_draft=0):
        return RowPlan(request_id, num_computed, num_new, max_draft, tuple(blocks), wants, next_draft)

    return make
