"""Steps that overlap give the tokens that steps in order give, on the host's path and on a card's with its graphs."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from threefold.request import SamplingParams
from threefold.runner.forward import DeviceRows, HostForward, StagedForward
from threefold.runner.graphs import GraphForward, GraphLimits
from threefold.runner.path import StepPath
from threefold.runner.readback import StreamReadback
from threefold.runner.staging import Staging
from threefold.testing.fake_capture import FakeCapture

CPU = torch.device("cpu")
VOCAB, BLOCK, END = 61, 4, 60


class FakeMark:
    """A mark in a queue that is always worked off."""

    def __init__(self):
        self.at_s = None

    def record(self):
        self.at_s = time.perf_counter()

    def synchronize(self):
        assert self.at_s is not None, "waited for before it was recorded"

    def elapsed_time(self, other):
        return (other.at_s - self.at_s) * 1000


class PaddedDecoder:
    """The fixture's hash decoder, for batches with padding; attends like one, and writes nothing to slots below 0."""

    def __init__(self, plain):
        self.plain = plain

    def forward(self, batch, kv):
        is_real = batch.slots >= 0
        kv[0][batch.slots[is_real]] = batch.token_ids[is_real]
        hidden = torch.zeros(len(batch.token_ids), dtype=torch.int64)
        starts = batch.row_starts.tolist()
        for row, context in enumerate(batch.context_lens.tolist()):
            num_new = starts[row + 1] - starts[row]
            assert num_new <= batch.max_new
            assert context <= batch.max_context
            table = batch.block_tables[row].tolist()
            known = [int(kv[0][table[i // BLOCK] * BLOCK + i % BLOCK]) for i in range(context)]
            for i in range(num_new):
                assert batch.positions[starts[row] + i] == context - num_new + i
                hidden[starts[row] + i] = self.plain.state(known[: context - num_new + i + 1])
        return hidden[batch.logit_tokens].unsqueeze(1)

    def logits(self, hidden, out=None):
        logits = self.plain.logits(hidden)
        return logits if out is None else out.copy_(logits)


def staged_parts(rows):
    max_rows = len(rows.lengths)
    return DeviceRows(max_rows, rows.block_tables.shape[1], CPU), Staging(128, max_rows, CPU)


def staged_path(runner, rows):
    device_rows, staging = staged_parts(rows)
    return StepPath(StagedForward(runner, staging, device_rows), device_rows, StreamReadback(128, CPU, FakeMark))


def graph_path(capture, max_draft):
    def make(runner, rows):
        device_rows, staging = staged_parts(rows)
        eager = StagedForward(runner, staging, device_rows)
        forward = GraphForward(runner, staging, device_rows, eager, GraphLimits(8, max_draft, 200, VOCAB))
        forward.capture(capture)
        return StepPath(forward, device_rows, StreamReadback(128, CPU, FakeMark))

    return make


def free_wishes():
    """Requests whose steps may overlap: no logprobs, nothing that the output so far decides."""
    return [
        SamplingParams(max_tokens=30, temperature=0.0),
        SamplingParams(max_tokens=30, temperature=0.9, seed=3, top_p=0.9, top_k=20),
        SamplingParams(max_tokens=25, temperature=0.7, seed=-1, logit_bias={7: 3.0, 9: -100.0}),
        SamplingParams(max_tokens=20, temperature=1.2, seed=2**62, min_p=0.1, min_tokens=15),
        SamplingParams(max_tokens=1, temperature=0.0),
        SamplingParams(max_tokens=30, temperature=1.0, seed=11, allowed_token_ids=tuple(range(40))),
    ]


@pytest.fixture
def num_ahead(monkeypatch):
    """How many steps were planned behind one in flight."""
    from threefold.schedule.scheduler import Scheduler

    plans = []
    plain = Scheduler.plan_ahead

    def plan_ahead(self, in_flight):
        plan = plain(self, in_flight)
        plans.extend([] if plan is None else [plan])
        return plan

    monkeypatch.setattr(Scheduler, "plan_ahead", plan_ahead)
    return plans


@pytest.fixture
def many_prompts():
    dice = np.random.default_rng(8)
    return [dice.integers(0, 50, size).tolist() for size in (1, 3, 17, 40, 8, 29)]


@pytest.mark.parametrize("kind", ["host", "staged", "graphs"])
def test_overlapped_steps_change_no_answer(engine, many_prompts, num_ahead, kind):
    expected = engine().run(many_prompts, free_wishes())
    capture = FakeCapture()
    settings = {}
    if kind != "host":
        make = staged_path if kind == "staged" else graph_path(capture, 0)
        settings = {"make_path": make, "decoder": PaddedDecoder(engine().decoder)}
    overlapped = engine(is_overlapped=True, **settings)
    assert overlapped.run(many_prompts, free_wishes()) == expected
    assert len(num_ahead) > 20
    assert kind != "graphs" or capture.num_replays > 20


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_steps_overlap_where_they_may_and_wait_where_they_must(engine, drafter, prompts, wishes, num_drafts):
    """Every sampling parameter, history and logprobs too, with and without drafts, over graphs."""
    expected = engine().run(prompts, wishes)
    capture = FakeCapture()
    overlapped = engine(
        is_overlapped=True,
        make_path=graph_path(capture, num_drafts),
        decoder=PaddedDecoder(engine().decoder),
        drafters=[drafter] if num_drafts else [],
        num_drafts=num_drafts,
    )
    assert overlapped.run(prompts, wishes) == expected
    assert capture.num_replays > 0


def test_preemption_and_aborts_under_overlap(engine, many_prompts, num_ahead):
    wishes = [SamplingParams(max_tokens=40, temperature=0.8, seed=i) for i in range(len(many_prompts))]
    expected = engine().run(many_prompts, wishes)
    tight = engine(is_overlapped=True, num_blocks=34, make_path=staged_path, decoder=PaddedDecoder(engine().decoder))
    for request_id, (prompt, wish) in enumerate(zip(many_prompts, wishes, strict=True)):
        tight.add(request_id, prompt, wish)
    for num_steps in range(10_000):
        if not tight.core.has_work:
            break
        tight.step()
        if num_steps == 12:
            tight.core.abort([0])
    assert [tight.answer(i) for i in range(1, len(expected))] == expected[1:]
    assert tight.answer(0) == expected[0][: len(tight.answer(0))]
    assert tight.core.stats().num_preemptions > 0
    assert num_ahead


def test_one_rows_bad_logits_end_it_alone_while_steps_overlap(engine, many_prompts):
    class BrokenDecoder(PaddedDecoder):
        def logits(self, hidden, out=None):
            logits = super().logits(hidden, out)
            logits[hidden[:, 0] % 97 == 0] = float("nan")
            return logits

    wishes = [SamplingParams(max_tokens=30, temperature=0.0)] * len(many_prompts)
    answers, errors = [], []
    for is_overlapped in (False, True):
        broken = engine(is_overlapped=is_overlapped, make_path=staged_path, decoder=BrokenDecoder(engine().decoder))
        answers.append(broken.run(many_prompts, wishes))
        errors.append([broken.deltas[i][-1].error for i in range(len(many_prompts))])
    assert answers[0] == answers[1]
    assert errors[0] == errors[1]
    assert any(errors[0])
    assert not all(errors[0])


def test_the_hosts_path_is_the_default(engine):
    assert isinstance(engine().core.executor._worker._path.forward, HostForward)
