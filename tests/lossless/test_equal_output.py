"""Whatever is drafted, the answers are those of a run without drafts: greedy and sampled, token for token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threefold.cost import CostCurve
from threefold.draft.controller import Controller
from threefold.draft.drafter import Draft
from threefold.request import SamplingParams

END = 60


def rounded(entries):
    return (
        None if entries is None else [(e.token_id, round(e.logprob, 4), e.rank, [t for t, _ in e.top]) for e in entries]
    )


def logprobs(engine, request_id):
    return [entry for delta in engine.deltas[request_id] for entry in rounded(delta.logprobs) or []]


@pytest.mark.parametrize("num_drafts", [1, 3, 8])
def test_any_drafter_leaves_every_answer_as_it_is(engine, drafter, prompts, wishes, num_drafts):
    plain = engine()
    expected = plain.run(prompts, wishes)
    drafted = engine(drafters=[drafter], num_drafts=num_drafts)
    assert drafted.run(prompts, wishes) == expected
    for request_id in range(len(prompts)):
        assert logprobs(drafted, request_id) == logprobs(plain, request_id)


def test_right_drafts_are_accepted_and_save_steps(engine, drafters, prompts):
    wishes = [SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)] * len(prompts)
    plain, drafted = engine(), engine(drafters=[drafters["RightDrafter"]()], num_drafts=4)
    assert drafted.run(prompts, wishes) == plain.run(prompts, wishes)
    stats = drafted.core.stats()
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 0
    assert stats.num_steps < plain.core.stats().num_steps / 2


@pytest.mark.parametrize("name", ["Ngram", "Suffix"])
def test_text_that_repeats_itself_is_drafted_by_lookup(engine, drafters, name):
    prompts = [[1, 2, 3, 4, 5] * 4, [7, 8] * 10]
    wishes = [SamplingParams(max_tokens=60, temperature=0.0, logit_bias={END: -100.0})] * 2
    drafted = engine(drafters=[drafters[name]()], num_drafts=4)
    assert drafted.run(prompts, wishes) == engine().run(prompts, wishes)
    assert drafted.core.stats().num_accepted_tokens > 0


def test_wrong_drafts_are_all_rejected(engine, drafters, prompts):
    wishes = [SamplingParams(max_tokens=20, temperature=0.0)] * len(prompts)
    drafted = engine(drafters=[drafters["WrongDrafter"]()], num_drafts=2)
    drafted.run(prompts, wishes)
    stats = drafted.core.stats()
    assert stats.num_draft_tokens > 0
    assert stats.num_accepted_tokens == 0


@pytest.mark.parametrize("name", ["TooLongDrafter", "OutOfVocabularyDrafter", "RaisingDrafter", "ForgetfulDrafter"])
def test_a_drafters_faults_are_counted_and_no_request_fails(engine, drafters, prompts, wishes, name):
    drafted = engine(drafters=[drafters[name]()], num_drafts=3)
    drafted.run(prompts, wishes)
    stats = drafted.core.stats()
    assert stats.num_draft_faults > 0
    assert stats.num_request_errors == 0


def test_a_raising_drafter_costs_only_the_rows_it_raises_for(engine, drafters, prompts):
    wishes = [SamplingParams(max_tokens=20, temperature=0.0)] * len(prompts)
    drafted = engine(drafters=[drafters["RaisingDrafter"]()], num_drafts=3)
    drafted.run(prompts, wishes)
    accepted = [sum(delta.num_accepted for delta in drafted.deltas[i]) for i in range(len(prompts))]
    assert all((count > 0) == (request_id % 2 == 0) for request_id, count in enumerate(accepted))


def test_several_drafters_give_each_row_the_more_promising_draft(engine, drafters, prompts, wishes):
    right, wrong = drafters["RightDrafter"](name="right"), drafters["WrongDrafter"](name="wrong")
    propose = right.propose
    right.propose = lambda wanted: {
        key: Draft(draft.token_ids, (0.9,) * len(draft.token_ids)) for key, draft in propose(wanted).items()
    }
    drafted = engine(drafters=[wrong, right], num_drafts=3)
    assert drafted.run(prompts, wishes) == engine().run(prompts, wishes)
    assert drafted.core.stats().num_accepted_tokens > 0


class OnCurve(Controller):
    """Steps take what a curve says, however busy the machine is: drafts are cheap, so some are tried."""

    def __init__(self, max_draft):
        self._truth = CostCurve([(1, 1.0), (64, 2.0)])
        super().__init__(CostCurve([(1, 1.0), (64, 2.0)]), max_draft)

    def observe_step(self, shape, forward_ms, draft_ms, num_committed):
        super().observe_step(shape, self._truth.forward_ms(shape), 0.0, num_committed)


def test_the_adaptive_controller_changes_no_answer(engine, drafters, prompts, wishes):
    expected = engine().run(prompts, wishes)
    for name in ("RandomDrafter", "WrongDrafter", "Ngram"):
        policy = OnCurve(6)
        adaptive = engine(drafters=[drafters[name]()], num_drafts=6, policy=policy)
        assert adaptive.run(prompts, wishes) == expected
        assert adaptive.core.stats().num_draft_tokens > 0


def test_preemption_and_aborts_in_the_middle_change_no_other_answer(engine, drafters, prompts, wishes):
    expected = engine().run(prompts, wishes)
    tight = engine(drafters=[drafters["RandomDrafter"]()], num_drafts=4, num_blocks=40, max_num_batched_tokens=10)
    for request_id, (prompt, wish) in enumerate(zip(prompts, wishes, strict=True)):
        tight.add(request_id, prompt, wish)
        tight.add(100 + request_id, prompt[::-1], wish)
    for count in range(2000):
        tight.step()
        if count % 7 == 3:
            tight.core.abort([100 + count // 7])
        if not tight.core.has_work:
            break
    assert tight.core.stats().num_preemptions > 0
    assert tight.core.stats().num_draft_faults == 0  # drafters were told of every end and new beginning
    assert [tight.answer(request_id) for request_id in range(len(prompts))] == expected


def test_cached_prefixes_and_chunks_change_no_answer(engine, drafters):
    shared = np.random.default_rng(1).integers(0, 50, 30).tolist()
    wishes = [SamplingParams(max_tokens=20, temperature=0.8, seed=seed) for seed in range(6)]
    prompts = [[*shared, seed] for seed in range(6)]
    apart = [engine().run([prompt], [wish])[0] for prompt, wish in zip(prompts, wishes, strict=True)]
    together = engine(drafters=[drafters["RandomDrafter"]()], num_drafts=3, max_num_seqs=2, max_num_batched_tokens=7)
    assert together.run(prompts, wishes) == apart
    assert sum(together.deltas[i][0].num_cached_tokens for i in range(6)) > 0


def test_drafts_change_neither_cached_prefixes_nor_running_requests(engine, drafters, prompts, wishes):
    plain, drafted = engine(), engine(drafters=[drafters["RandomDrafter"]()], num_drafts=4)
    figures = []
    for each in (plain, drafted):
        each.run(prompts, wishes)
        each.run([[*prompt, 1, 2, 3] for prompt in prompts], wishes)
        stats = each.core.stats()
        figures.append((stats.prefix_queries, stats.prefix_hits, stats.num_preemptions, stats.num_held_blocks))
    assert figures[0] == figures[1]


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_drafts=st.integers(1, 10),
    budget=st.integers(6, 40),
    num_blocks=st.integers(30, 100),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
)
def test_random_loads(engine, drafters, seed, num_drafts, budget, num_blocks, temperature):
    dice = np.random.default_rng(seed)
    prompts = [dice.integers(0, 60, int(size)).tolist() for size in dice.integers(1, 30, 6)]
    wishes = [
        SamplingParams(
            max_tokens=int(dice.integers(1, 25)),
            temperature=temperature,
            seed=int(dice.integers(0, 2**60)),
            repetition_penalty=float(dice.choice([1.0, 1.2])),
            frequency_penalty=float(dice.choice([0.0, 0.5])),
            top_p=float(dice.choice([1.0, 0.8])),
        )
        for _ in prompts
    ]
    names = ["RightDrafter", "RandomDrafter", "WrongDrafter"]
    chosen = [drafters[name](name=name) for name in names[: int(dice.integers(1, 4))]]
    drafted = engine(
        drafters=chosen, num_drafts=num_drafts, num_blocks=num_blocks, max_num_batched_tokens=budget, max_num_seqs=6
    )
    assert drafted.run(prompts, wishes) == engine().run(prompts, wishes)
