import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from threefold.draft.drafter import Draft, Drafter, RowDrafter, RowTexts
from threefold.draft.match import BORDER, put_longer
from threefold.draft.suffix import SuffixDrafter
from threefold.draft.texts import LEAST_ROOM, Texts

ANSWER = [21, 22, 23, 24, 25, 26, 27, 28]
LIMITS = 2, 8


def answered(drafter: SuffixDrafter, request_id: int, answer: list[int], salt: str = "") -> None:
    drafter.start(request_id, [1, 2, 3], salt)
    drafter.observe(request_id, answer)
    drafter.stop(request_id)


def longest(texts: list[list[int]], end: list[int], num_tokens: int) -> Draft | None:
    """The draft from the first of these texts with the longest match, each indexed anew."""
    lengths, counts, one = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    found = np.empty((1, num_tokens), dtype=np.int32), np.empty((1, num_tokens)), counts
    for tokens in texts:
        index = Texts(*LIMITS)
        slots = np.array([index.add(end)]), np.array([index.add(tokens)])
        put_longer(one, index.tables, slots[0], index.tables, slots[1], np.array([num_tokens]), lengths, *found)
    num = int(counts[0])
    return Draft(found[0][0, :num].tolist(), tuple(found[1][0, :num].tolist())) if num else None


@dataclass
class Plain:
    """What a drafter should say, from lists that are looked through from their beginnings."""

    half_tokens: int
    texts: dict[int, list[int]] = field(default_factory=dict)
    begins: dict[int, tuple[int, str]] = field(default_factory=dict)
    memories: dict[str, list[list[int]]] = field(default_factory=dict)

    def start(self, request_id: int, token_ids: list[int], salt: str) -> None:
        self.texts[request_id], self.begins[request_id] = list(token_ids), (len(token_ids), salt)

    def observe(self, request_id: int, token_ids: list[int]) -> None:
        self.texts[request_id] += token_ids

    def propose(self, wanted: dict[int, int]) -> dict[int, Draft]:
        drafts = {}
        for request_id, num_tokens in wanted.items():
            text = self.texts[request_id]
            halves = self.memories.get(self.begins[request_id][1], [])
            drafts[request_id] = longest([text, *halves], text, num_tokens)
        return {request_id: draft for request_id, draft in drafts.items() if draft is not None}

    def stop(self, request_id: int) -> None:
        num_given, salt = self.begins.pop(request_id)
        answer = self.texts.pop(request_id)[num_given:][-(self.half_tokens - 1) :]
        if not answer:
            return
        halves = self.memories.pop(salt, [[], []])
        if len(halves[0]) + len(answer) + 1 > self.half_tokens:
            halves = [[], halves[0]]
        halves[0] += [*answer, BORDER]
        self.memories[salt] = halves
        while sum(len(half) for halves in self.memories.values() for half in halves) > 2 * self.half_tokens:
            del self.memories[next(iter(self.memories))]


def read(drafter: RowDrafter, rows: RowTexts, row_of: dict[int, int], wanted: dict[int, int]) -> dict[int, Draft]:
    """What it drafts for rows that it reads for itself."""
    asked = rows._replace(rows=np.array([row_of[request_id] for request_id in wanted], dtype=np.int64))
    num_wanted = np.array(list(wanted.values()), dtype=np.int64)
    return drafter.draft_rows(list(wanted), num_wanted, asked).by_request(wanted)


@pytest.mark.parametrize("half_tokens", [20, 150, 2_000])
@pytest.mark.parametrize("seed", range(4))
def test_reading_rows_is_as_being_told_and_as_looking_through_everything(seed: int, half_tokens: int) -> None:
    dice = random.Random(seed)
    told, reading = (SuffixDrafter(*LIMITS, 2 * half_tokens) for _ in range(2))
    plain = Plain(half_tokens)
    rows = RowTexts(np.zeros((6, 1_500), dtype=np.int32), np.zeros(6, dtype=np.int64), np.empty(0, dtype=np.int64))
    row_of: dict[int, int] = {}
    num_told: dict[int, int] = {}

    def tokens(*lengths: int) -> list[int]:
        return [dice.randrange(6) for _ in range(dice.choice(lengths))]

    for step in range(250):
        if len(row_of) < 6 and dice.random() < 0.4:
            given, row = tokens(0, 1, 9, 80, 300), min(set(range(6)) - set(row_of.values()))
            rows.token_ids[row, : len(given)], rows.lengths[row] = given, len(given)
            row_of[step], num_told[step] = row, len(given)
            salt = dice.choice("aab")
            for drafter in (told, reading, plain):
                drafter.start(step, given, salt)
        elif row_of and dice.random() < 0.25:
            gone = dice.choice(list(row_of))
            row = row_of.pop(gone)
            reading.observe(gone, rows.token_ids[row, num_told[gone] : rows.lengths[row]].tolist())
            for drafter in (told, reading, plain):
                drafter.stop(gone)
        for request_id, row in row_of.items():
            more = tokens(0, 1, 2, 8)
            for drafter in (told, plain):
                drafter.observe(request_id, more)
            rows.token_ids[row, rows.lengths[row] : rows.lengths[row] + len(more)] = more
            rows.lengths[row] += len(more)
        asked = dice.sample(list(row_of), dice.randint(0, len(row_of)))
        wanted = {request_id: dice.randint(1, 6) for request_id in asked}
        drafts = read(reading, rows, row_of, wanted)
        num_told |= {request_id: int(rows.lengths[row_of[request_id]]) for request_id in asked}
        assert drafts == told.propose(wanted)
        assert drafts == plain.propose(wanted)
    assert reading.num_remembered_tokens == told.num_remembered_tokens > half_tokens // 2


def test_a_memory_that_grows_or_turns_over_between_reads_is_seen() -> None:
    drafter = SuffixDrafter(*LIMITS, memory_tokens=4 * LEAST_ROOM)
    rows = RowTexts(np.array([[5, 21, 22]], dtype=np.int32), np.array([3]), np.zeros(1, dtype=np.int64))
    drafter.start(0, [5, 21, 22], "")
    assert read(drafter, rows, {0: 0}, {0: 2}) == {}
    seen = []
    for answer_id in range(1, 12):
        start = 1_000 * answer_id
        answered(drafter, answer_id, [*range(start, start + LEAST_ROOM // 2), *(ANSWER if answer_id == 1 else ())])
        drafts = read(drafter, rows, {0: 0}, {0: 2})
        seen.append(bool(drafts))
        assert not drafts or drafts[0].token_ids == [23, 24]
    assert seen == [True] * 6 + [False] * 5  # three answers a half, and the newer and the older one


def test_a_request_that_begins_again_without_an_end_is_remembered_so_far() -> None:
    drafter = SuffixDrafter(2, 16)
    drafter.start(1, [1, 2, 3], "")
    drafter.observe(1, ANSWER)
    drafter.start(1, [7, 21, 22], "")
    assert drafter.propose({1: 2})[1].token_ids == [23, 24]


def test_who_wants_nothing_is_left_out() -> None:
    drafter = SuffixDrafter(2, 16)
    answered(drafter, 1, ANSWER)
    drafter.start(2, [21, 22], "")
    assert drafter.propose({2: 0}) == {}
    assert drafter.propose({}) == {}


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
