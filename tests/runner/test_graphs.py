from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from threefold.runner.forward import DeviceRows, StagedForward
from threefold.runner.graphs import MAX_LOGITS_BYTES, GraphForward, GraphLimits, NoCapture, expected_bytes
from threefold.runner.inputs import build_inputs
from threefold.runner.runner import ModelRunner
from threefold.runner.staging import Staging
from threefold.step import StepPlan
from threefold.testing.fake_capture import FakeCapture

CPU = torch.device("cpu")
VOCAB = 64


class CountingModel:
    """The token after t is t + 1; works with padding as it is."""

    def __init__(self):
        self.sizes = []

    def forward(self, batch, kv):
        self.sizes.append((len(batch.token_ids), len(batch.context_lens), batch.max_new, batch.max_context))
        return batch.token_ids[batch.logit_tokens].unsqueeze(1)

    def logits(self, hidden, out=None):
        logits = torch.zeros(len(hidden), VOCAB)
        logits[torch.arange(len(hidden)), (hidden[:, 0] + 1) % VOCAB] = 5.0
        return logits if out is None else out.copy_(logits)


@pytest.fixture
def max_prompt_tokens():
    """Of steps with prompts that get a graph; some tests have more."""
    return 0


@pytest.fixture
def graphs(rows, max_prompt_tokens):
    model, capture = CountingModel(), FakeCapture()
    device_rows = DeviceRows(4, rows.block_tables.shape[1], CPU)
    staging, runner = Staging(64, 4, CPU), ModelRunner(model, [])
    limits = GraphLimits(4, max_draft=3, max_context=40, vocab_size=VOCAB, max_prompt_tokens=max_prompt_tokens)
    forward = GraphForward(runner, staging, device_rows, StagedForward(runner, staging, device_rows), limits)
    report = forward.capture(capture)
    assert capture.num_replays == capture.num_captured, "a first launch is slow: it is not left to a request's step"
    assert not device_rows.tokens[:4].any(), "padding leaves no trace"
    model.sizes.clear()
    capture.num_replays = 0
    return forward, model, capture, report, device_rows


@pytest.fixture
def step(rows, new_row, plan_row):
    """The arrays of a step with rows of so many new tokens, all but the first of them prompts' ends."""

    def make(*num_new, wants=True):
        news = [new_row(i, tuple(range(1, num + 1))) for i, num in enumerate(num_new)]
        for new in news:
            rows.grow(rows.add(new), range(len(new.token_ids) // 4 + 1))
        plans = [plan_row(i, 0, num, wants=wants) for i, num in enumerate(num_new)]
        return build_inputs(StepPlan(plans), rows).arrays

    return make


def test_all_sizes_are_captured_the_report_says_what_it_took(graphs):
    *_, capture, report, _ = graphs
    assert GraphLimits(4, 3, 40, VOCAB).sizes == [1, 2, 4, 8, 12, 16]
    assert capture.num_captured == report.num_graphs == 3 + 5  # one token a row: 1, 2, 4; with drafts: from 2 on
    assert str(report).startswith("8, for steps of up to 16 tokens: 0.0 s, 1 MiB")


@pytest.mark.parametrize(
    ("num_new", "size"),
    [
        ((1,), (1, 1, 1, 40)),
        ((1, 1, 1), (4, 4, 1, 40)),
        ((2, 1), (4, 4, 4, 40)),
        ((4, 4, 4), (12, 4, 4, 40)),
        ((5, 1), (6, 2, 5, 5)),  # longer than any draft: without a graph
    ],
)
def test_a_step_runs_at_the_next_size(graphs, step, num_new, size):
    forward, model, capture, _, device_rows = graphs
    arrays = step(*num_new)
    found = forward.run(arrays, len(num_new))
    assert model.sizes == [size]
    assert capture.num_replays == (size[3] == 40)
    assert found.logits.argmax(-1).tolist() == [num + 1 for num in num_new]
    if capture.num_replays:
        assert found.likely.tokens.tolist() == [num + 1 for num in num_new]
        assert found.keep_rows.tolist() == arrays.keep_rows.tolist()
        assert device_rows.tokens[arrays.row_ids].tolist() == [num + 1 for num in num_new]


@pytest.mark.parametrize("max_prompt_tokens", [47])
@pytest.mark.parametrize(
    ("num_new", "size"),
    [
        ((5, 1), (16, 4, 16, 40)),
        ((5, 1, 1, 7), (16, 4, 16, 40)),
        ((9,), (16, 4, 16, 40)),
        ((17,), (32, 4, 32, 40)),
        ((33,), (33, 1, 33, 33)),  # more tokens than any graph
        ((4, 2), (8, 4, 4, 40)),  # drafts may be so long: no prompt
    ],
)
def test_a_step_with_prompts_runs_at_the_next_size(graphs, step, num_new, size):
    forward, model, capture, report, device_rows = graphs
    assert report.num_graphs == 3 + 5 + 2
    assert report.max_tokens == 32
    arrays = step(*num_new)
    found = forward.run(arrays, len(num_new))
    assert model.sizes == [size]
    assert capture.num_replays == (size[3] == 40)
    assert found.logits.argmax(-1).tolist() == [num + 1 for num in num_new]
    if capture.num_replays:
        assert found.keep_rows.tolist() == arrays.keep_rows.tolist()
        assert device_rows.tokens[arrays.row_ids].tolist() == [num + 1 for num in num_new]


@pytest.mark.parametrize("max_prompt_tokens", [16])
def test_a_prompts_chunk_of_which_nobody_wants_a_token(graphs, step):
    forward, _, capture, _, _ = graphs
    found = forward.run(step(9, wants=False), 0)
    assert capture.num_replays == 1
    assert found.logits is None


@pytest.mark.parametrize("max_prompt_tokens", [16])
def test_a_step_with_prompts_that_wants_more_logits_than_rows_runs_as_it_is(graphs, step):
    forward, _, capture, _, _ = graphs
    arrays = step(6, 1)
    arrays = replace(arrays, logit_tokens=np.arange(7), keep_rows=np.full(7, 4))
    found = forward.run(arrays, 7)
    assert capture.num_replays == 0
    assert found.logits.argmax(-1).tolist() == [2, 3, 4, 5, 6, 7, 2]


def test_hidden_states_for_prompt_logprobs_come_without_a_graph(graphs, step):
    forward, _, capture, _, _ = graphs
    found = forward.run(step(2, 1), 1)
    assert capture.num_replays == 0
    assert found.hidden is not None
    assert len(found.logits) == 1


def test_nobody_wants_a_token(graphs, step):
    forward, _, capture, _, _ = graphs
    found = forward.run(step(2, wants=False), 0)
    assert capture.num_replays == 1
    assert found.logits is None


def test_logits_bound_the_sizes():
    sizes = GraphLimits(4096, 5, 8192, 151_936).sizes
    assert 4 * 151_936 * sizes[-1] <= MAX_LOGITS_BYTES
    assert sizes[-1] >= 512
    assert sizes == sorted(set(sizes))
    assert GraphLimits(1, 0, 100, 1 << 40).sizes == [1]


def test_prompts_sizes_are_no_further_apart_than_a_product_has_tiles():
    sizes = GraphLimits(256, 0, 8192, 1000, max_prompt_tokens=2048).prompt_sizes
    assert sizes[-1] == 2048
    assert all(0 < after - before <= (64 if before < 384 else 128) for before, after in itertools.pairwise(sizes))
    assert GraphLimits(256, 0, 8192, 1000, max_prompt_tokens=1000).prompt_sizes[-1] <= 1000
    assert GraphLimits(256, 0, 8192, 1000).prompt_sizes == []


def test_more_graphs_are_expected_to_take_more():
    plain, drafting = GraphLimits(64, 0, 512, 1000), GraphLimits(64, 5, 512, 1000)
    prompting = replace(drafting, max_prompt_tokens=1024)
    assert 0 < expected_bytes(plain, 1000) < expected_bytes(drafting, 1000) < expected_bytes(prompting, 1000)
    assert expected_bytes(prompting, 1000) < expected_bytes(prompting, 1000, has_rounds=True)
    assert expected_bytes(prompting, 1000, is_eager=True) == 8 * 1000 * prompting.sizes[-1], "logits only"


@pytest.mark.parametrize("num_new", [(1,), (1, 1, 1), (2, 4)])
def test_without_capturing_steps_come_to_the_same(graphs, rows, step, num_new):
    """Also where work runs outside of inference mode, as an executor's steps do."""
    recorded, *_, device_rows = graphs
    own_rows = DeviceRows(4, rows.block_tables.shape[1], CPU)
    staging, runner = Staging(64, 4, CPU), ModelRunner(CountingModel(), [])
    limits = GraphLimits(4, max_draft=3, max_context=40, vocab_size=VOCAB)
    launched = GraphForward(runner, staging, own_rows, StagedForward(runner, staging, own_rows), limits)
    report = launched.capture(NoCapture())
    assert report.num_bytes == 0
    arrays = step(*num_new)
    num_wanted = len(arrays.logit_tokens)
    expected, found = recorded.run(arrays, num_wanted), launched.run(arrays, num_wanted)
    assert found.logits.tolist() == expected.logits.tolist()
    assert found.likely.tokens.tolist() == expected.likely.tokens.tolist()
    assert own_rows.tokens[:4].tolist() == device_rows.tokens[:4].tolist()


def test_a_step_of_the_same_shape_reads_what_its_own_replay_left(graphs, rows, new_row, plan_row):
    forward, *_ = graphs
    for num_wanted in (1, 2, 1):
        news = [new_row(i, (7 * num_wanted + i,)) for i in range(num_wanted)]
        for new in news:
            rows.grow(rows.add(new), (0,))
        arrays = build_inputs(StepPlan([plan_row(i, 0, 1) for i in range(num_wanted)]), rows).arrays
        expected = [new.token_ids[0] + 1 for new in news]
        assert forward.run(arrays, num_wanted).likely.tokens.tolist() == expected
        for new in news:
            rows.drop(new.request_id)


@pytest.mark.parametrize(("sizes", "num_met"), [((), 3), ((1, 2, 4), 4), ((1, 2), 3)])
def test_a_step_without_a_graph_wants_a_number_of_logits_that_was_met_at_start(graphs, step, sizes, num_met):
    """A product of a size that is new loads its kernel, and CUDA waits for all work that is under way."""
    *_, device_rows = graphs
    model = CountingModel()
    met = []
    model.logits = lambda hidden, logits=model.logits: met.append(len(hidden)) or logits(hidden)
    staging = Staging(64, 4, CPU)
    arrays = step(5, 1, 7)
    found = StagedForward(ModelRunner(model, []), staging, device_rows, sizes).run(arrays, 3)
    assert met == [num_met]
    assert found.logits.argmax(-1).tolist() == [6, 2, 8]
    assert found.keep_rows.tolist() == arrays.keep_rows.tolist()
