from __future__ import annotations

import numpy as np
import pytest
import torch

from threefold.draft.drafter import Draft
from threefold.kernels.drafting import BY_COMPARISON
from threefold.runner.ahead import Ahead
from threefold.runner.drafting import Drafting
from threefold.runner.forward import DeviceRows
from threefold.runner.inputs import build_inputs
from threefold.runner.proposing import Proposing
from threefold.step import StepPlan

DRAWN = torch.tensor([7, 8, 9])


class ScriptedDrafter:
    """Drafts for all but some, and keeps what it was asked."""

    name = "scripted"

    def __init__(self):
        self.left_out = set()
        self.fails = set()
        self.asked = []
        self.caught_up = []
        self.observed = []
        self.coming = []

    def start(self, request_id, token_ids, salt): ...

    def observe(self, request_id, token_ids):
        self.observed.append((request_id, list(token_ids)))

    def stop(self, request_id): ...

    def propose(self, wanted):
        raise AssertionError("nobody asks in between")

    def ahead(self, rows, drawn):
        self._fail("ahead")
        self.asked.append(rows)
        self.coming.append({key: [20 + key] * row.most for key, row in rows.items() if key not in self.left_out})
        return self.coming[-1].keys()

    def expected(self, request_ids):
        self._fail("expected")
        return {key: Draft([0] * len(self.coming[-1][key]), (0.5,) * len(self.coming[-1][key])) for key in request_ids}

    def arrived(self):
        return self.coming.pop(0)

    def catch_up(self, request_ids):
        self._fail("catch_up")
        self.caught_up.append(list(request_ids))

    def _fail(self, verb):
        if verb in self.fails:
            raise ValueError(verb)


@pytest.fixture
def parts(rows, new_row):
    """(drafter, drafters' desk, what goes ahead); two requests of three tokens."""
    drafter = ScriptedDrafter()
    drafting = Drafting([drafter], 32)
    proposing = Proposing(rows, drafting)
    for request_id in (5, 6):
        new = new_row(request_id)
        rows.grow(rows.add(new), (2 * request_id - 10, 2 * request_id - 9))
        proposing.start(new)
    ahead = Ahead(drafter, drafting, proposing, rows, DeviceRows(4, 11, torch.device("cpu"), 3))
    return drafter, drafting, ahead


def launch(ahead, rows, *plans, decreed=None):
    plan = StepPlan(list(plans))
    inputs = build_inputs(plan, rows)
    return inputs, ahead.launch(plan, inputs, decreed, DRAWN)


def test_rows_that_ask_are_drafted_for_and_named_by_places(parts, rows, plan_row):
    drafter, _, ahead = parts
    _, request_ids = launch(ahead, rows, plan_row(5, 2, 1, next_draft=2), plan_row(6, 2, 1))
    assert list(request_ids) == [5]
    (asked,) = drafter.asked
    row = rows.find(5)
    assert asked[5] == (0, [], BY_COMPARISON, 2, 5 + 3 * row)
    proposals = ahead.expect(request_ids, {5: 2})
    assert proposals[5] == ((0.5, 0.5), "scripted")
    assert rows.draft(row, 2) == [-1 - (5 + 3 * row), -2 - (5 + 3 * row)]
    assert rows.num_drafts[row] == 2
    ahead.take(0)
    assert drafter.coming
    ahead.take(ahead.num_launched)
    assert rows.draft(row, 2) == [25, 25]


def test_drafts_by_decree_and_those_that_only_the_device_knows(parts, rows, plan_row):
    drafter, _, ahead = parts
    rows.set_draft(rows.find(6), (-9, -10))
    launch(ahead, rows, plan_row(6, 2, 3, max_draft=2, next_draft=1), decreed=np.array([1]))
    assert drafter.asked[0][6][:4] == (0, [-9, -10], 1, 1)


def test_a_row_whose_last_token_is_on_its_way_is_made_ready_for_the_next_step(parts, rows, plan_row):
    drafter, _, ahead = parts
    _, request_ids = launch(ahead, rows, plan_row(5, 3, 1, next_draft=2), plan_row(6, 2, 1, next_draft=2))
    assert list(request_ids) == [6]
    assert ahead.expect(request_ids, {5: 2, 6: 2}).keys() == {6}
    assert drafter.caught_up == [[5]]


def test_the_drafter_hears_of_tokens_before_it_drafts_behind_them(parts, rows, plan_row):
    drafter, _, ahead = parts
    rows.append(rows.find(5), (11, 12))
    _, request_ids = launch(ahead, rows, plan_row(5, 4, 1, next_draft=2))
    assert drafter.observed == [(5, [11, 12])]
    rows.append(rows.find(5), (13,))
    ahead.expect(request_ids, {5: 2})
    assert drafter.observed[1:] == [(5, [13])]


@pytest.mark.parametrize("verb", ["ahead", "expected", "catch_up"])
def test_faults_cost_drafts_and_are_counted(parts, rows, plan_row, verb):
    drafter, drafting, ahead = parts
    drafter.left_out, drafter.fails = {6}, {verb}
    _, request_ids = launch(ahead, rows, plan_row(5, 2, 1, next_draft=2), plan_row(6, 2, 1, next_draft=2))
    assert list(request_ids) == ([] if verb == "ahead" else [5])
    if request_ids:
        assert ahead.expect(request_ids, {5: 2, 6: 2}).keys() == ({5} if verb == "catch_up" else set())
    assert ahead.num_launched == len(drafter.coming)
    assert drafting.take_num_faults() == 1


def test_drafts_of_a_row_that_left_are_dropped(parts, rows, plan_row, new_row):
    _, _, ahead = parts
    _, request_ids = launch(ahead, rows, plan_row(5, 2, 1, next_draft=2))
    ahead.expect(request_ids, {5: 2})
    rows.drop(5)
    row = rows.add(new_row(8))
    ahead.take(1)
    assert rows.num_drafts[row] == 0
