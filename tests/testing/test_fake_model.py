"""The hash that answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.testing.fake_model import FakeModel


@given(st.lists(st.integers(0, 300)), st.lists(st.integers(0, 300)))
def test_reading_in_parts_is_reading_the_whole(first: list[int], second: list[int]) -> None:
    model = FakeModel()

    assert model.read(second, model.read(first)) == model.read(first + second)


def test_every_token_of_the_history_counts() -> None:
    model = FakeModel(alphabet=range(1000))
    history = list(range(50))
    tokens = {model.next_token(model.read([*history[:i], 99, *history[i + 1 :]])) for i in range(50)}

    assert len(tokens) > 40


def test_an_answer_is_repeatable_and_of_the_alphabet() -> None:
    model = FakeModel()
    answer = model.answer([1, 2, 3], max_total_tokens=103)

    assert len(answer) == 100
    assert answer == FakeModel().answer([1, 2, 3], max_total_tokens=103)
    assert set(answer) <= set(range(97, 123))
    assert len(set(answer)) > 10


def test_an_answer_ends_at_its_end_token_but_not_too_early() -> None:
    model = FakeModel(end_token_id=0, ends_one_in=4)
    short = model.answer([5], max_total_tokens=1000, end_token_ids=frozenset({0}))
    long = model.answer([5], max_total_tokens=1000, end_token_ids=frozenset({0}), min_tokens=len(short) + 3)

    assert short[-1] == 0
    assert short.count(0) == 1
    assert len(long) > len(short) + 3
    assert long.count(0) == 1


def test_banned_tokens_are_not_said() -> None:
    model = FakeModel(alphabet=[1, 2])

    assert {model.next_token(model.read([i]), {1}) for i in range(50)} == {2}


def test_a_ban_on_everything_cannot_be_met() -> None:
    model = FakeModel(alphabet=[1])
    with pytest.raises(StopIteration):
        model.next_token(model.read([1]), {1})
