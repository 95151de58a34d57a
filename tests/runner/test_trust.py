"""A drafter's record."""

from threefold.draft.drafter import Draft
from threefold.runner.trust import Trust
from threefold.sample.verify import num_common


def test_common_beginning() -> None:
    assert num_common([1, 2, 3], [1, 2, 4, 3]) == 2
    assert num_common([1, 2], [1, 2, 3]) == 2
    assert num_common([], [1]) == 0


def test_a_drafter_that_says_too_much_is_worth_less() -> None:
    boaster, modest = Trust(), Trust()
    draft = Draft([1, 2], (0.9, 0.8))
    for _ in range(50):
        boaster.judge(draft, [1, 9, 9])
        modest.judge(Draft([1, 2], (0.5, 0.4)), [1, 2, 3])

    assert boaster.worth(draft) < 1.1
    assert modest.worth(Draft([1, 2], (0.5, 0.4))) > 1.9
    assert boaster.typical_worth == 1.0


def test_nothing_is_known_at_first() -> None:
    trust = Trust()

    assert trust.typical_worth is None
    assert trust.worth(Draft([1, 2], (0.5, 0.25))) == 0.75


def test_what_lies_beyond_the_committed_tokens_is_not_judged() -> None:
    trust = Trust()
    for _ in range(50):
        trust.judge(Draft([1, 2, 3, 4], (1.0, 1.0, 1.0, 1.0)), [1])

    assert trust.worth(Draft([1, 2], (1.0, 1.0))) == 2.0
