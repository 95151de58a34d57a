from __future__ import annotations

import logging

import pytest

from threefold.draft.drafter import Draft
from threefold.runner.drafting import Drafting

VOCAB = 10


class Scripted:
    """Proposes what it is told to, and writes down what it hears."""

    def __init__(self, name="scripted", drafts=None, fails=()):
        self.name = name
        self.drafts = drafts or {}
        self.fails = set(fails)
        self.heard = []

    def _hear(self, verb, request_id, *rest):
        self.heard.append((verb, request_id, *rest))
        if (verb, request_id) in self.fails or verb in self.fails:
            raise LookupError(verb)

    def start(self, request_id, token_ids, salt):
        self._hear("start", request_id, list(token_ids), salt)

    def observe(self, request_id, token_ids):
        self._hear("observe", request_id, list(token_ids))

    def stop(self, request_id):
        self._hear("stop", request_id)

    def propose(self, wanted):
        for request_id in wanted:
            self._hear("propose", request_id)
        return {key: draft for key, draft in self.drafts.items() if key in wanted}


def sure(*token_ids, survival=0.5):
    return Draft(list(token_ids), (survival,) * len(token_ids))


def test_the_four_verbs_reach_every_drafter():
    first, second = Scripted("a"), Scripted("b")
    desk = Drafting([first, second], VOCAB)
    desk.start(1, (4, 5), "salt")
    desk.observe({1: [6]})
    desk.stop(1)
    assert first.heard == second.heard == [("start", 1, [4, 5], "salt"), ("observe", 1, [6]), ("stop", 1)]
    assert desk.take_num_faults() == 0


def test_the_most_promising_draft_wins_and_the_first_drafter_a_tie():
    first = Scripted("a", {1: sure(1, 2), 2: sure(1), 3: sure(1)})
    second = Scripted("b", {1: sure(7), 2: sure(7, survival=0.9), 3: sure(7)})
    best = Drafting([first, second], VOCAB).propose({1: 2, 2: 2, 3: 1, 4: 1})
    assert {key: proposal.drafter for key, proposal in best.items()} == {1: "a", 2: "b", 3: "a"}


@pytest.mark.parametrize(
    "draft",
    [
        sure(1, 2, 3),
        sure(VOCAB),
        sure(-1),
        Draft([1, 2], (0.5,)),
        Draft([1], (1.5,)),
        Draft([1], (float("nan"),)),
        Draft(["x"], (0.5,)),
        Draft([1], None),
        None,
    ],
)
def test_nonsense_is_dropped_and_counted_and_others_keep_their_drafts(draft):
    desk = Drafting([Scripted(drafts={1: draft, 2: sure(3)})], VOCAB)
    assert set(desk.propose({1: 2, 2: 2})) == {2}
    assert desk.take_num_faults() >= 1
    assert desk.take_num_faults() == 0


def test_a_draft_for_a_request_nobody_asked_about_is_dropped():
    drafter = Scripted()
    drafter.propose = lambda wanted: {99: sure(1)}
    desk = Drafting([drafter], VOCAB)
    assert desk.propose({1: 2}) == {}
    assert desk.take_num_faults() == 1


def test_an_empty_draft_is_a_miss_and_no_fault():
    desk = Drafting([Scripted(drafts={1: Draft([], ())})], VOCAB)
    assert desk.propose({1: 2}) == {}
    assert desk.take_num_faults() == 0


def test_raising_for_one_row_leaves_the_others_their_drafts():
    desk = Drafting([Scripted(drafts={1: sure(1), 2: sure(2), 3: sure(3)}, fails=[("propose", 2)])], VOCAB)
    assert set(desk.propose({1: 1, 2: 1, 3: 1})) == {1, 3}
    assert desk.take_num_faults() == 1


@pytest.mark.parametrize("verb", ["start", "observe"])
def test_a_drafter_that_lost_track_of_a_request_is_not_asked_about_it_again(verb):
    drafter = Scripted(drafts={1: sure(1), 2: sure(2)}, fails=[(verb, 1)])
    desk = Drafting([drafter], VOCAB)
    for request_id in (1, 2):
        desk.start(request_id, [1], "")
        desk.observe({request_id: [2]})
    assert set(desk.propose({1: 1, 2: 1})) == {2}
    desk.observe({1: [3]})
    assert ("observe", 1, [3]) not in drafter.heard
    desk.stop(1)
    assert drafter.heard[-1] == ("stop", 1)
    drafter.fails.clear()
    desk.start(1, [1], "")  # after preemption it begins anew
    assert set(desk.propose({1: 1})) == {1}


def test_a_kind_of_fault_is_logged_once(caplog):
    desk = Drafting([Scripted(drafts={1: sure(VOCAB)})], VOCAB)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            desk.propose({1: 1})
    assert desk.take_num_faults() == 5
    assert len(caplog.records) == 1
    assert "outside the vocabulary" in caplog.text


class ScriptedModel(Scripted):
    """The same with KV of its own."""

    def lend(self, request_id, block_ids):
        self._hear("lend", request_id, list(block_ids))

    def recall(self, request_id):
        self._hear("recall", request_id)


def test_a_drafter_whose_word_came_true_is_preferred_to_one_that_promised_more():
    boaster = Scripted("boaster", {1: sure(7, 7, survival=0.9)})
    modest = Scripted("modest", {1: sure(1, 2, survival=0.6)})
    desk = Drafting([boaster, modest], VOCAB)
    assert desk.propose({1: 2})[1].drafter == "boaster"
    for _ in range(20):
        desk.observe({1: [1, 2]})
        chosen = desk.propose({1: 2})[1].drafter
    assert chosen == "modest"


def test_the_model_is_asked_where_the_others_are_likely_to_do_worse():
    cheap = Scripted("cheap", {1: sure(1, 2, 3, survival=0.9)})
    model = ScriptedModel("model", {1: sure(1, survival=0.5), 2: sure(4, survival=0.5)})
    desk = Drafting([cheap], VOCAB, model)
    desk.propose({1: 3, 2: 3})
    desk.observe({1: [1, 2, 3, 4]})
    desk.observe({2: [4, 5]})
    model.heard.clear()

    assert {key: proposal.drafter for key, proposal in desk.propose({1: 3, 2: 3}).items()} == {1: "cheap", 2: "model"}
    assert [request_id for verb, request_id in model.heard if verb == "propose"] == [2]


def test_loans_reach_the_model_and_its_faults_stay_its_own():
    model = ScriptedModel("model", {1: sure(1)}, fails=[("lend", 2)])
    desk = Drafting([], VOCAB, model)
    for request_id in (1, 2):
        desk.start(request_id, (4,), "")
        desk.lend(request_id, (8, 9))
    desk.recall(1)

    assert ("lend", 1, [8, 9]) in model.heard
    assert ("recall", 1) in model.heard
    assert desk.take_num_faults() == 1
    assert desk.propose({1: 1, 2: 1}).keys() == {1}
    Drafting([Scripted()], VOCAB).lend(1, (8,))  # nobody keeps KV: nothing happens


def test_a_glimpse_says_what_is_left_behind_the_tokens_on_their_way():
    desk = Drafting([Scripted(drafts={1: sure(1, 2, 3, 4), 2: sure(1, 2)})], VOCAB)
    assert desk.can_glimpse
    assert desk.glimpse([1, 2, 3]) == {1: pytest.approx(1.0), 2: 0.0, 3: 0.0}


def test_a_glimpse_is_judged_by_what_came_true():
    desk = Drafting([Scripted(drafts={1: sure(1, 2, 3, 4)})], VOCAB)
    for _ in range(100):
        desk.glimpse([1])
        desk.observe({1: [9, 9, 9, 9]})
    assert desk.glimpse([1])[1] < 0.1


def test_nobody_glimpses_through_a_model_or_without_drafters():
    assert not Drafting([], VOCAB).can_glimpse
    assert not Drafting([Scripted()], VOCAB, Scripted("model")).can_glimpse
