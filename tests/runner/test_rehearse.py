"""A rehearsal meets what a start and the first requests meet, and looks at no result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from threefold.kernels.drafting import RoundInputs
from threefold.runner import behind, forward, rounds
from threefold.runner.calibrate import CalibrationLimits
from threefold.runner.device import CpuDevice
from threefold.runner.graphs import GraphLimits
from threefold.runner.rehearse import rehearse

VOCAB = 32
GRAPHS = GraphLimits(max_rows=8, max_draft=2, max_context=128, vocab_size=VOCAB, max_prompt_tokens=64)
STEPS = CalibrationLimits(
    num_blocks=16, block_size=8, max_num_seqs=8, max_num_batched_tokens=128, max_model_len=128, vocab_size=VOCAB
)


class IdleModel:
    """Its bodies do nothing: results are what was in memory."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []
        self.drawn: list[int] = []

    def forward(self, batch, kv):
        for indices, most in ((batch.token_ids, VOCAB), (batch.positions, 128), (batch.logit_tokens, batch.num_tokens)):
            assert 0 <= int(indices.min()) <= int(indices.max()) < most
        self.batches.append((len(batch.token_ids), batch.max_new))
        return batch.token_ids.new_empty((len(batch.logit_tokens), 1), dtype=torch.float32)

    def logits(self, hidden, out=None):
        assert not hidden.any(), "fresh memory is zeros"
        self.drawn.append(len(hidden))
        return torch.empty(len(hidden), VOCAB) if out is None else out


class FakeMark:
    def record(self):
        pass


def rehearsed(*, is_draft: bool = False) -> IdleModel:
    model = IdleModel()
    rehearse(model, [], CpuDevice(1), GRAPHS, STEPS, max_blocks=17, is_draft=is_draft, make_mark=FakeMark)
    return model


def test_each_graph_is_run_once() -> None:
    seen = rehearsed().batches
    for size in GRAPHS.row_sizes:
        assert (size, 1) in seen
    for size in GRAPHS.sizes[1:]:
        assert seen.count((size, 3)) == 1
    for size in GRAPHS.prompt_sizes:
        assert (size, size) in seen


def test_prompts_of_all_lengths_are_run_and_draws_are_made() -> None:
    model = rehearsed()
    assert {(length, length) for length in (32, 64, 128)} <= set(model.batches)
    assert model.drawn[-2:] == [1, 64], "one row, and as many as the sampler is tried with"


def test_a_draft_model_also_feeds_itself() -> None:
    seen = rehearsed(is_draft=True).batches
    for size in GRAPHS.row_sizes:
        assert seen.count((size, 1)) - rehearsed().batches.count((size, 1)) == 1, "its own token"
        assert (2 * size, 2) in seen, "behind a step"


def test_what_bodies_leave_undone_is_an_index_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a card tokens, positions and places come out of bodies, too."""

    def unpack(staged, num_ids, row_ids, tokens, tables):
        return torch.empty(len(staged), dtype=torch.int64), tables.new_empty((len(row_ids), tables.shape[1]))

    def inputs(of: Callable[..., RoundInputs]) -> Callable[..., RoundInputs]:
        return lambda *args: RoundInputs(*(torch.empty_like(part) for part in of(*args)))

    monkeypatch.setattr(forward, "unpack_step", unpack)
    monkeypatch.setattr(rounds, "next_inputs", inputs(rounds.next_inputs))
    monkeypatch.setattr(behind, "judged_inputs", inputs(behind.judged_inputs))
    litter = [torch.full((1 << power,), -7) for power in range(4, 16) for _ in range(3)]
    del litter
    assert rehearsed(is_draft=True).batches
