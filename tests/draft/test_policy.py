from threefold.cost import StepShape
from threefold.draft.policy import DraftPolicy, FixedDrafts, NoDrafts, RowDraft

SHAPE = StepShape(2, 2, 200)
ROWS = [RowDraft(1, (0.9, 0.8, 0.7), "ngram", 100), RowDraft(2, (0.1,), "ngram", 100)]


def test_no_drafts_never_drafts() -> None:
    policy: DraftPolicy = NoDrafts()
    policy.start(1, 8)
    assert not policy.appetites([1])
    assert policy.choose(ROWS, SHAPE) == [0, 0]
    policy.observe(1, "ngram", 3, 1)
    policy.observe_step(SHAPE, 10.0, 0.0, 2)
    policy.stop(1)
    assert (policy.gain_ratio, policy.gain_error) == (1.0, 0.0)


def test_fixed_drafts_take_all_up_to_the_limits() -> None:
    policy: DraftPolicy = FixedDrafts(2)
    policy.start(1, 8)
    policy.start(2, 1)
    assert policy.appetites([1, 2]) == {1: 2, 2: 1}
    assert policy.choose(ROWS, SHAPE) == [2, 1]
    policy.stop(1)
    policy.stop(1)
