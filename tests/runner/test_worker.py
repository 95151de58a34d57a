from __future__ import annotations

import pytest
import torch

from threefold.draft.drafter import Draft
from threefold.runner.drafting import Drafting
from threefold.runner.executor import LocalExecutor
from threefold.runner.runner import ModelRunner
from threefold.runner.sight import Sight
from threefold.runner.worker import Worker
from threefold.sample.sampler import Sampler
from threefold.sample.verify import ExactAcceptance
from threefold.step import StepPlan


class CountingDrafter:
    """Drafts t + 1, t + 2, ... and is wrong from `right` tokens on."""

    name = "counting"

    def __init__(self, right=100):
        self.right = right
        self.last = {}
        self.asked = []

    def start(self, request_id, token_ids, salt):
        self.last[request_id] = token_ids[-1]

    def observe(self, request_id, token_ids):
        self.last[request_id] = token_ids[-1]

    def stop(self, request_id):
        del self.last[request_id]

    def propose(self, wanted):
        self.asked.append(dict(wanted))
        return {
            key: Draft(
                [(self.last[key] + 1 + ahead) % 32 if ahead < self.right else 0 for ahead in range(most)],
                tuple(0.9 ** (ahead + 1) for ahead in range(most)),
            )
            for key, most in wanted.items()
        }


@pytest.fixture
def make_worker(model, rows, device):
    def make(*drafters):
        sampler = Sampler(rows.sampling, ExactAcceptance())
        return Worker(ModelRunner(model, []), rows, sampler, Drafting(drafters, 32), device)

    return make


def test_a_request_from_prompt_chunks_to_tokens(make_worker, new_row, plan_row):
    drafter = CountingDrafter()
    worker = make_worker(drafter)
    new = new_row(3, (1, 2, 3, 4, 5))
    result = worker.run(StepPlan([plan_row(3, 0, 3, blocks=(0,), wants=False)], [new]))
    assert result.rows[0].token_ids == []
    result = worker.run(StepPlan([plan_row(3, 3, 2, blocks=(1,))]))
    assert result.rows[0].token_ids == [6]
    result = worker.run(StepPlan([plan_row(3, 5, 1)]))
    assert result.rows[0].token_ids == [7]
    assert result.forward_ms > 0
    assert worker.run(StepPlan([], dropped=[3, 77])).rows == []
    assert drafter.last == {}


def test_drafts_stay_with_the_worker_and_are_verified_next_step(make_worker, new_row, plan_row):
    drafter = CountingDrafter(right=2)
    worker = make_worker(drafter)
    row = worker.run(StepPlan([plan_row(1, 0, 3, blocks=(0, 1, 2), next_draft=3)], [new_row(1, (1, 2, 3))])).rows[0]
    assert row.token_ids == [4]
    assert (len(row.survival), row.drafter, row.num_drafted) == (3, "counting", 0)
    row = worker.run(StepPlan([plan_row(1, 3, 4, max_draft=3, next_draft=1)])).rows[0]
    assert row.token_ids == [5, 6, 7]  # two accepted, and the correction
    assert (row.num_drafted, len(row.survival)) == (3, 1)
    row = worker.run(StepPlan([plan_row(1, 6, 2, max_draft=1)])).rows[0]
    assert row.token_ids == [8, 9]  # one accepted, and the bonus
    assert row.survival == ()
    assert drafter.asked == [{1: 3}, {1: 1}]


def test_rows_that_want_no_drafts_are_not_asked_about(make_worker, new_row, plan_row):
    drafter = CountingDrafter()
    worker = make_worker(drafter)
    news = [new_row(1), new_row(2), new_row(4)]
    plans = [
        plan_row(1, 0, 3, blocks=(0,)),
        plan_row(2, 0, 3, blocks=(1,), next_draft=2),
        plan_row(4, 0, 2, blocks=(2,), wants=False, next_draft=2),
    ]
    worker.run(StepPlan(plans, news))
    assert drafter.asked == [{2: 2}]


def test_a_row_dropped_and_set_up_again_in_one_plan(make_worker, new_row, plan_row):
    drafter = CountingDrafter()
    worker = make_worker(drafter)
    worker.run(StepPlan([plan_row(1, 0, 3, blocks=(0,))], [new_row(1)]))
    again = new_row(1, (1, 2, 3, 4), num_prompt=3)
    result = worker.run(StepPlan([plan_row(1, 0, 4, blocks=(5,))], [again], [1]))
    assert result.rows[0].token_ids == [5]


def test_one_rows_bad_logits_are_its_own(make_worker, model, new_row, plan_row):
    plain = model.logits

    def logits(hidden):
        values = plain(hidden)
        values[hidden[:, 0] == 9] = float("nan")
        return values

    model.logits = logits
    drafter = CountingDrafter()
    worker = make_worker(drafter)
    news = [new_row(1, (1, 2)), new_row(2, (8, 9)), new_row(4, (5,))]
    plans = [plan_row(new.request_id, 0, len(new.token_ids), blocks=(new.request_id,), next_draft=1) for new in news]
    result = worker.run(StepPlan(plans, news))
    assert [row.token_ids for row in result.rows] == [[3], [], [6]]
    assert [row.error is None for row in result.rows] == [True, False, True]
    assert set(drafter.asked[0]) == {1, 4}


def test_prompt_logprobs_beside_other_rows(make_worker, new_row, plan_row):
    worker = make_worker()
    news = [new_row(1, (1, 2, 9), prompt_logprobs=1), new_row(2, (4, 5))]
    result = worker.run(StepPlan([plan_row(1, 0, 3, blocks=(0,)), plan_row(2, 0, 2, blocks=(1,))], news))
    first, second = result.rows
    assert first.token_ids == [10]
    assert [entry.token_id for entry in first.prompt_logprobs] == [2, 9]
    assert [entry.rank for entry in first.prompt_logprobs] == [1, 2]
    assert [entry.top[0][0] for entry in first.prompt_logprobs] == [2, 3]
    assert second.token_ids == [6]
    assert second.prompt_logprobs is None


def test_long_prompts_report_every_position_once(make_worker, new_row, plan_row, monkeypatch):
    monkeypatch.setattr("threefold.runner.runner.CHUNK_TOKENS", 4)
    worker = make_worker()
    prompt = tuple(range(3, 30))
    entries = []
    result = worker.run(
        StepPlan([plan_row(1, 0, 15, blocks=range(4), wants=False)], [new_row(1, prompt, prompt_logprobs=0)])
    )
    entries += result.rows[0].prompt_logprobs
    result = worker.run(StepPlan([plan_row(1, 15, 12, blocks=range(4, 7))]))
    entries += result.rows[0].prompt_logprobs
    assert [entry.token_id for entry in entries] == list(prompt[1:])
    assert result.rows[0].token_ids == [30]


def test_the_executor_runs_the_worker(make_worker, new_row, plan_row):
    executor = LocalExecutor(make_worker())
    assert executor.run(StepPlan([plan_row(1, 0, 3, blocks=(0,))], [new_row(1)])).rows[0].token_ids == [4]
    executor.close()


def test_logits_of_chunks_are_those_of_the_whole(model):
    hidden = torch.arange(150).unsqueeze(1)
    runner = ModelRunner(model, [])
    assert torch.equal(torch.cat(list(runner.logits_in_chunks(hidden))), runner.logits(hidden))


class Waited(Sight):
    """The host waits so long for each step, whatever the clock says."""

    def __init__(self, ms: float) -> None:
        super().__init__()
        self._ms = ms

    def waited(self, ms: float) -> None:
        super().waited(self._ms)


@pytest.fixture
def sighted(model, rows, device):
    def make(drafter, wait_ms):
        sampler = Sampler(rows.sampling, ExactAcceptance())
        drafting = Drafting([drafter], 32)
        return Worker(ModelRunner(model, []), rows, sampler, drafting, device, sight=Waited(wait_ms))

    return make


def overlapped(worker, *plans):
    """Each collected when the next is launched; the last one is not."""
    results = []
    worker.launch(plans[0])
    for plan in plans[1:]:
        worker.launch(plan)
        results.append(worker.collect())
    return results


def test_rows_that_are_not_asked_are_looked_ahead_for_while_the_host_would_wait(sighted, new_row, plan_row):
    worker = sighted(CountingDrafter(), wait_ms=5.0)
    begin = StepPlan([plan_row(1, 0, 3, blocks=(0, 1))], [new_row(1, (1, 2, 3))])
    (result,) = overlapped(worker, begin, StepPlan([plan_row(1, 3, 1, next_draft=2)]))
    assert result.glimpses[1] > 1.0
    assert result.rows[0].survival == (), "nothing is kept of it"
    asked = worker.collect()
    assert asked.glimpses == {}
    assert len(asked.rows[0].survival) == 2


def test_nobody_looks_ahead_where_steps_wait_for_the_host(sighted, new_row, plan_row):
    worker = sighted(CountingDrafter(), wait_ms=0.0)
    begin = StepPlan([plan_row(1, 0, 3, blocks=(0, 1))], [new_row(1, (1, 2, 3))])
    (result,) = overlapped(worker, begin, StepPlan([plan_row(1, 3, 1)]))
    assert result.glimpses == {}


def test_nobody_looks_ahead_while_the_device_is_idle(sighted, new_row, plan_row):
    worker = sighted(CountingDrafter(), wait_ms=5.0)
    begin = StepPlan([plan_row(1, 0, 3, blocks=(0, 1))], [new_row(1, (1, 2, 3))])
    overlapped(worker, begin, StepPlan([plan_row(1, 3, 1)]))
    assert worker.collect().glimpses == {}, "no step was launched behind it"


def test_nobody_looks_ahead_where_steps_do_not_overlap(make_worker, new_row, plan_row):
    worker = make_worker(CountingDrafter())
    assert worker.run(StepPlan([plan_row(1, 0, 3, blocks=(0, 1))], [new_row(1, (1, 2, 3))])).glimpses == {}
