from __future__ import annotations

import torch

from threefold.layers.batch import Batch
from threefold.runner.graphs import GraphLimits
from threefold.runner.path import BatchSteps, card_path
from threefold.runner.runner import ModelRunner
from threefold.testing.fake_capture import FakeCapture

CPU = torch.device("cpu")
VOCAB = 16


class FakeMark:
    def record(self):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return 1.0


class KeepingModel:
    """Keeps the batches it is given; the token after t is t + 1."""

    def __init__(self):
        self.batches = []

    def forward(self, batch, kv):
        self.batches.append(batch)
        return batch.token_ids[batch.logit_tokens].unsqueeze(1)

    def logits(self, hidden, out=None):
        logits = torch.nn.functional.one_hot((hidden[:, 0] + 1) % VOCAB, VOCAB).float()
        return logits if out is None else out.copy_(logits)


def made_up(num_rows, num_new):
    num_tokens = num_rows * num_new
    return Batch(
        token_ids=torch.arange(num_tokens) % 7,
        positions=torch.arange(num_new).repeat(num_rows),
        slots=torch.arange(num_tokens),
        row_starts=(torch.arange(num_rows + 1) * num_new).int(),
        context_lens=torch.full((num_rows,), num_new, dtype=torch.int32),
        block_tables=torch.arange(num_rows * 2).view(num_rows, 2).int(),
        logit_tokens=torch.arange(num_tokens),
        max_new=num_new,
        max_context=num_new,
    )


def test_made_up_batches_take_the_engines_path():
    model = KeepingModel()
    path, report = card_path(
        ModelRunner(model, []),
        GraphLimits(max_rows=8, max_draft=2, max_context=64, vocab_size=VOCAB),
        max_tokens=64,
        max_blocks=4,
        device=CPU,
        capture=FakeCapture(),
        make_mark=FakeMark,
    )
    assert report.num_graphs > 0
    run = BatchSteps(path)
    for num_rows, num_new, size in ((3, 1, 4), (3, 3, 12), (1, 20, 20)):
        batch = made_up(num_rows, num_new)
        for _ in range(2):  # the second time its tables are there already
            likely = run(batch)
            assert likely.tokens[: num_rows * num_new].tolist() == (batch.token_ids + 1).tolist()
            seen = model.batches[-1]
            assert len(seen.token_ids) == size
            assert seen.block_tables[:num_rows, :2].tolist() == batch.block_tables.tolist()
            assert seen.slots[: num_rows * num_new].tolist() == batch.slots.tolist()
