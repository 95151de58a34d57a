import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.advise.forms import BatchHalf, read_entry
from threefold.advise.logged import LoggedRequest


def only(entry):
    form, found = read_entry(entry)
    (one,) = found
    return form, one


def test_each_form_is_known_by_its_keys():
    assert only({"turns": ["hi"], "category": "qa"})[1].category == "qa"
    assert only({"prompt": "def f():", "canonical_solution": "pass"})[1].output == "pass"
    form, one = only({"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [3, 4]})
    assert (form, one.arrival_s, one.block_tokens, one.num_prompt_tokens) == ("trace", 1.5, 512, 600)
    form, one = only({"threefold": 1, "prompt_tokens": 2, "output_tokens": 1, "pairs": [0, 1, 2], "ttft_ms": 3.5})
    assert (form, one.pairs, one.ttft_ms) == ("recording", [0, 1, 2], 3.5)


@pytest.mark.parametrize(
    "extra", [{"response_format": {"type": "json_object"}}, {"tools": [{}]}, {"guided_regex": "a+"}]
)
def test_what_demands_json(extra):
    body = {"messages": [{"role": "user", "content": "x"}]}
    assert not only({"request": body})[1].is_structured
    assert only({"request": {**body, **extra}})[1].is_structured


def test_iso_times():
    assert only({"prompt": "x", "timestamp": "1970-01-01T00:00:05+00:00"})[1].arrival_s == 5.0
    with pytest.raises(ValueError, match="is no time"):
        read_entry({"prompt": "x", "timestamp": "soon"})


@pytest.mark.parametrize(
    "entry",
    [
        {"request": {"messages": "hi"}},
        {"request": {}},
        {"conversations": [1]},
        {"turns": []},
        {"prompt": ""},
        {"input_length": -1, "hash_ids": []},
        {"input_length": 5, "hash_ids": 7},
        {"threefold": 1, "prompt_tokens": "many"},
        {"threefold": 1, "pairs": ["a"]},
        {"custom_id": 1, "response": {"body": 3}},
    ],
)
def test_wrong_types_are_value_errors(entry):
    with pytest.raises(ValueError, match=r"\w"):
        read_entry(entry)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
KEYS = (
    "request response messages prompt turns conversations input_length hash_ids timestamp custom_id body threefold "
    "pairs choices usage category output temperature"
)


@given(st.dictionaries(st.sampled_from(KEYS.split()), json_values, max_size=5))
def test_no_object_raises_anything_but_a_value_error(entry):
    try:
        _, found = read_entry(entry)
    except ValueError:
        return
    assert isinstance(found, BatchHalf) or all(isinstance(one, LoggedRequest) for one in found)
