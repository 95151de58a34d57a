import random

import numpy as np

from threefold.advise.portrait import tokens_a_step
from threefold.advise.replay import MAX_DRAFT, Drafts, replay
from threefold.advise.trace import ReplayText, TraceRequest
from threefold.server.recording import numbered_pairs


def request(prompt: list[int], output: list[int], kind: str = "k") -> TraceRequest:
    text = ReplayText(prompt, output, 0, True)
    return TraceRequest(len(prompt), len(output), np.zeros(0, dtype=np.uint64), text=text, kind=kind)


def test_answers_that_copy_the_prompt_are_all_right():
    prompt = list(range(100, 200))
    drafts = replay([request(prompt, prompt[:60])]).drafts["ngram"][0]
    assert len(drafts.num_right) == len(drafts.survival) == 59
    assert min(drafts.num_right[2:50]) == MAX_DRAFT
    assert tokens_a_step([drafts]) > 6


def test_random_answers_give_nothing():
    dice = random.Random(3)
    trace = [request(dice.choices(range(50_000), k=80), dice.choices(range(50_000), k=80)) for _ in range(4)]
    for by_place in replay(trace).drafts.values():
        assert sum(sum(one.num_right) for one in by_place.values()) == 0


def test_suffix_knows_the_answers_to_others_and_ngram_does_not():
    trace = [request([1000 + index], list(range(50))) for index in range(3)]
    drafts = replay(trace).drafts
    assert sum(drafts["ngram"][2].num_right) == 0
    assert sum(drafts["suffix"][0].num_right) == 0
    assert sum(drafts["suffix"][2].num_right) > 200


def test_what_is_not_replayed_is_still_remembered():
    first = request([1], list(range(60)), "first")
    second = request([2], list(range(60)), "second")
    known = replay([first, second], drafters=("suffix",), max_tokens=60)
    assert known.num_sampled == 1
    (place,) = known.drafts["suffix"]
    if place == 1:
        assert sum(known.drafts["suffix"][1].num_right) > 200


def test_the_bound_takes_from_every_kind():
    trace = [request([1], [1] * 100, kind) for kind in ("a", "b") for _ in range(10)]
    known = replay(trace, drafters=("ngram",), max_tokens=1000)
    kinds = [trace[place].kind for place in known.drafts["ngram"]]
    assert known.num_sampled == len(kinds) == 10
    assert kinds.count("a") == kinds.count("b")


def test_pairs_say_what_the_text_says_but_for_matches_of_one_token():
    dice = random.Random(5)
    prompt = dice.choices(range(30), k=200)
    output = prompt[20:60] + dice.choices(range(30), k=40) + prompt[100:140]
    pairs = numbered_pairs([*prompt, *output])
    told = TraceRequest(200, len(output), np.zeros(0, dtype=np.uint64))
    told.text = ReplayText(pairs[:200], pairs[200:], 1, False)
    from_pairs = replay([told], drafters=("ngram",)).drafts["ngram"][0]
    from_text = replay([request(prompt, output)], drafters=("ngram",)).drafts["ngram"][0]
    assert tokens_a_step([from_pairs]) > 1.5
    assert abs(tokens_a_step([from_pairs]) - tokens_a_step([from_text])) < 0.5


def test_tokens_a_step_counts_the_token_that_a_step_says_itself():
    assert tokens_a_step([Drafts([0, 0, 0], [()] * 3)]) == 1.0
    assert tokens_a_step([Drafts([2, 9, 9, 0], [()] * 4)]) == 2.0
