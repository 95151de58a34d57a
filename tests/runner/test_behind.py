from __future__ import annotations

import pytest
import torch

from threefold.kernels.drafting import BY_COMPARISON
from threefold.runner.behind import Following, GraphBehind, Running
from threefold.runner.forward import DeviceRows
from threefold.runner.graphs import GraphLimits
from threefold.runner.rounds import GraphRounds
from threefold.runner.rows import Growth
from threefold.runner.runner import ModelRunner
from threefold.testing.fake_capture import FakeCapture

CPU = torch.device("cpu")
VOCAB, BLOCK, MAX_ROWS, MAX_DRAFT = 32, 4, 4, 3


class CountingModel:
    """The token after t is t + 1; keeps what it was fed, row by row, padding left out."""

    def __init__(self):
        self.fed = []

    def forward(self, batch, kv):
        starts = batch.row_starts.tolist()
        rows = []
        for row, context in enumerate(batch.context_lens.tolist()):
            tokens = slice(starts[row], starts[row + 1])
            if context:
                columns = (batch.token_ids, batch.positions, batch.slots)
                rows.append((*(column[tokens].tolist() for column in columns), context))
            else:
                assert starts[row] == starts[row + 1]
        self.fed.append(rows)
        return batch.token_ids[batch.logit_tokens].unsqueeze(1)

    def logits(self, hidden, out=None):
        logits = torch.zeros(len(hidden), VOCAB)
        logits[torch.arange(len(hidden)), (hidden[:, 0] + 1) % VOCAB] = 5.0
        return logits if out is None else out.copy_(logits)


class Mark:
    def __init__(self):
        self.num_recorded = 0

    def record(self):
        self.num_recorded += 1

    def synchronize(self):
        assert self.num_recorded

    def elapsed_time(self, other):
        return 0.0


@pytest.fixture
def parts():
    """(model, target's rows, draft model's rows, what drafts behind steps)."""
    model = CountingModel()
    own, target = (DeviceRows(MAX_ROWS, 6, CPU, MAX_DRAFT) for _ in range(2))
    limits = GraphLimits(MAX_ROWS, MAX_DRAFT, 24, VOCAB)
    rounds = GraphRounds(ModelRunner(model, []), own, limits, block_size=BLOCK, max_rounds=MAX_DRAFT)
    behind = GraphBehind(rounds, target, vocab_size=30, max_draft=MAX_DRAFT, make_mark=Mark)
    for one in (rounds, behind):
        one.capture(FakeCapture())
    own.block_tables.copy_(torch.arange(4 * 6).view(4, 6))
    model.fed.clear()
    return model, target, own, behind


@pytest.mark.parametrize("max_draft", [1, MAX_DRAFT])
def test_each_graph_is_launched_once_when_it_is_captured_and_leaves_no_trace(max_draft):
    model = CountingModel()
    own, target = (DeviceRows(MAX_ROWS, 6, CPU, max_draft) for _ in range(2))
    limits = GraphLimits(MAX_ROWS, max_draft, 24, VOCAB)
    rounds = GraphRounds(ModelRunner(model, []), own, limits, block_size=BLOCK, max_rounds=max_draft)
    behind = GraphBehind(rounds, target, vocab_size=30, max_draft=max_draft, make_mark=Mark)
    for one in (rounds, behind):
        capture = FakeCapture()
        one.capture(capture)
        assert capture.num_replays == capture.num_captured == len(rounds.sizes)
    assert not any(model.fed), "padding alone"
    assert not own.tokens[:MAX_ROWS].any()
    assert not target.tokens.any()


def follow(target, row, drafts=(), *, first=0, held=BY_COMPARISON, most=3, length=9, last=20, end=24):
    return Following(Running(first, list(drafts), held, most, target.draft_place(row)), row, length, last, end)


@pytest.mark.parametrize(
    ("drafts", "drawn", "held", "last_two"),
    [
        ([], [5], 0, [20, 5]),
        ([5, 6, 7], [9, 6, 7, 8], 0, [20, 9]),
        ([5, 6, 7], [5, 9, 7, 8], 1, [5, 9]),
        ([5, 6, 7], [5, 6, 7, 3], 3, [7, 3]),
        ([5, 6], [5, 6, 11, 7], 2, [6, 11]),
        ([5, 6, 7], [5, 9, 7, 8], 1, [5, 9]),
    ],
)
def test_each_row_goes_on_from_the_drafts_that_hold(parts, drafts, drawn, held, last_two):
    model, target, _, behind = parts
    drafted = behind.launch([follow(target, 2, drafts)], torch.tensor(drawn), Growth([], [])).wait()
    last = last_two[-1]
    assert drafted.token_ids[:, 0].tolist() == [last + 1, last + 2, last + 3]
    assert drafted.chances[0, 0] == pytest.approx(0.827, abs=0.01)
    positions = [8 + held, 9 + held]
    assert model.fed[0] == [(last_two, positions, [12 * BLOCK + p for p in positions], 10 + held)]
    assert [fed[0][0] for fed in model.fed[1:]] == [[last + 1], [last + 2]]
    assert [fed[0][1] for fed in model.fed[1:]] == [[10 + held], [11 + held]]
    place = target.draft_place(2)
    assert target.tokens[place : place + 3].tolist() == [last + 1, last + 2, last + 3]


def test_rows_beside_each_other_by_decree_and_of_different_lengths(parts):
    model, target, _, behind = parts
    rows = [
        follow(target, 3, [1, 2], first=0, held=1, most=1, length=5),
        follow(target, 0, [], first=3, most=2, length=1, last=4),
        follow(target, 1, [8, 9], first=4, most=2, length=12, end=13),
    ]
    target.tokens.fill_(-7)
    coming = behind.launch(rows, torch.tensor([6, 7, 6, 10, 8, 3, 5]), Growth([], []))
    assert coming.wait().token_ids.T.tolist() == [[8, 9], [11, 12], [4, 5]]
    first, second = model.fed
    assert [row[:2] for row in first] == [([1, 7], [5, 6]), ([4, 10], [0, 1]), ([8, 3], [12, 13])]
    assert first[2][2] == [6 * BLOCK + 12, -1]  # no room behind the end
    assert [row[:2] for row in second] == [([8], [7]), ([11], [2]), ([4], [14])]
    assert second[2][2] == [-1]
    for row, tokens in ((3, [8, 9, -7]), (0, [11, 12, -7]), (1, [4, 5, -7]), (2, [-7, -7, -7])):
        place = target.draft_place(row)
        assert target.tokens[place : place + 3].tolist() == tokens


def test_drafts_that_only_the_device_knows_are_judged_too(parts):
    _, target, _, behind = parts
    place = target.draft_place(1)
    target.tokens[place : place + 2] = torch.tensor([5, 6])
    row = follow(target, 1, [-1 - place, -2 - place])
    assert behind.launch([row], torch.tensor([5, 9, 7]), Growth([], [])).wait().token_ids[:, 0].tolist() == [10, 11, 12]
    assert target.tokens[place : place + 3].tolist() == [10, 11, 12]


def test_a_token_that_the_target_lacks_is_fed_to_it_as_another(parts):
    model, target, _, behind = parts
    drafted = behind.launch([follow(target, 0)], torch.tensor([28]), Growth([], [])).wait()
    assert drafted.token_ids[:, 0].tolist() == [29, 30, 31]
    assert [fed[0][0] for fed in model.fed[1:]] == [[29], [30]]
    place = target.draft_place(0)
    assert target.tokens[place : place + 3].tolist() == [29, 29, 29]


def test_blocks_go_along_and_two_draftings_may_be_on_their_way(parts):
    model, target, own, behind = parts
    first = behind.launch([follow(target, 0)], torch.tensor([1]), Growth([2, 3], [21, 22]))
    second = behind.launch([follow(target, 0)], torch.tensor([9]), Growth([], []))
    assert first.wait().token_ids[:, 0].tolist() == [2, 3, 4]
    assert second.wait().token_ids[:, 0].tolist() == [10, 11, 12]
    assert own.block_tables[0, 2:4].tolist() == [21, 22]
    assert model.fed[0][0][2] == [21 * BLOCK, 21 * BLOCK + 1]
