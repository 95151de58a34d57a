import random

from threefold.draft.drafter import Drafter
from threefold.draft.suffix import BORDER, SuffixDrafter

ANSWER = [21, 22, 23, 24, 25, 26, 27, 28]


def answered(drafter: SuffixDrafter, request_id: int, answer: list[int], salt: str = "") -> None:
    drafter.start(request_id, [1, 2, 3], salt)
    drafter.observe(request_id, answer)
    drafter.stop(request_id)


def test_answers_help_later_requests() -> None:
    drafter: Drafter = SuffixDrafter(2, 16)
    answered(drafter, 1, ANSWER)
    drafter.start(2, [7, 8, 9, 21, 22], "")
    assert drafter.propose({2: 4})[2].token_ids == [23, 24, 25, 26]


def test_prompts_are_not_remembered() -> None:
    drafter = SuffixDrafter(2, 16)
    drafter.start(1, [40, 41, 42, 43], "")
    drafter.observe(1, [50])
    drafter.stop(1)
    drafter.start(2, [40, 41], "")
    assert drafter.propose({2: 2}) == {}


def test_tenants_never_see_each_others_text() -> None:
    drafter = SuffixDrafter(2, 16)
    answered(drafter, 1, ANSWER, salt="a")
    drafter.start(2, [9, 21, 22], "b")
    drafter.start(3, [9, 21, 22], "a")
    assert set(drafter.propose({2: 4, 3: 4})) == {3}


def test_no_draft_reaches_across_two_answers() -> None:
    drafter = SuffixDrafter(2, 16)
    answered(drafter, 1, ANSWER)
    answered(drafter, 2, [31, 32, 33])
    drafter.start(3, [26, 27], "")
    assert drafter.propose({3: 8})[3].token_ids == [28]
    drafter.observe(3, [28])
    assert drafter.propose({3: 8}) == {}
    for answer in drafter.propose({3: 8}).values():
        assert BORDER not in answer.token_ids


def test_the_longer_match_wins_and_the_own_text_a_tie() -> None:
    drafter = SuffixDrafter(2, 16)
    answered(drafter, 1, [61, 62, 63, 64, 65])
    drafter.start(2, [62, 63, 99, 5, 61, 62, 63], "")
    assert drafter.propose({2: 1})[2].token_ids == [64]  # three tokens elsewhere against two here
    drafter.start(3, [61, 62, 63, 99, 5, 61, 62, 63], "")
    assert drafter.propose({3: 1})[3].token_ids == [99]


def test_memory_is_bounded_over_all_salts_and_forgets_the_oldest() -> None:
    rng = random.Random(0)
    drafter = SuffixDrafter(2, 16, memory_tokens=1000)
    answered(drafter, 0, ANSWER, salt="old")
    for request_id in range(1, 200):
        answered(drafter, request_id, [rng.randrange(10**6) for _ in range(60)], salt=f"s{request_id % 3}")
        assert drafter.num_remembered_tokens <= 1000
    assert drafter.num_remembered_tokens > 300
    drafter.start(999, [21, 22], "old")
    assert drafter.propose({999: 4}) == {}


def test_an_answer_longer_than_the_memory_keeps_its_end() -> None:
    drafter = SuffixDrafter(2, 16, memory_tokens=100)
    answered(drafter, 1, list(range(1000, 1500)))
    assert drafter.num_remembered_tokens <= 100
    drafter.start(2, [1490, 1491], "")
    assert drafter.propose({2: 2})[2].token_ids == [1492, 1493]


def test_stopping_strangers_and_preemption() -> None:
    """A preempted request begins again with its output as given text; that part is remembered once."""
    drafter = SuffixDrafter(2, 16)
    drafter.stop(5)
    answered(drafter, 1, ANSWER[:4])
    remembered = drafter.num_remembered_tokens
    drafter.start(1, [1, 2, 3, *ANSWER[:4]], "")
    drafter.stop(1)
    assert drafter.num_remembered_tokens == remembered
