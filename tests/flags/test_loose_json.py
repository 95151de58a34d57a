import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.flags.loose_json import looks_like_pair, parse_object, parse_value

WORDS = st.text(st.sampled_from("abcdefghijklmnopqrstuvwxyzABC_-./"), min_size=1, max_size=12).filter(
    lambda word: word not in {"true", "false", "null", "None", "True", "False"} and not word.startswith("-")
)
KEYS = st.from_regex(r"[a-z][a-z_]{0,10}", fullmatch=True)
VALUES = st.one_of(WORDS, st.integers(-1000, 1000), st.booleans(), st.none(), st.lists(st.integers(0, 9), max_size=3))


@pytest.mark.parametrize(
    "text",
    [
        '{"method": "ngram", "num_speculative_tokens": 5}',
        "{method:ngram,num_speculative_tokens:5}",
        "{method: ngram, num_speculative_tokens: 5}",
        "{'method': 'ngram', 'num_speculative_tokens': 5}",
        "method:ngram num_speculative_tokens:5",
        "method:ngram,num_speculative_tokens:5",
        '{"method":ngram,"num_speculative_tokens":5}',
    ],
)
def test_every_form_of_one_object(text: str) -> None:
    assert parse_object(text) == {"method": "ngram", "num_speculative_tokens": 5}


def test_values_of_all_kinds() -> None:
    parsed = parse_object(
        "{model:Qwen/Qwen3-0.6B,rates:[0.8,0.5],adaptive:false,length:3.5,nothing:null,methods:[ngram,suffix]}"
    )
    assert parsed == {
        "model": "Qwen/Qwen3-0.6B", "rates": [0.8, 0.5], "adaptive": False, "length": 3.5, "nothing": None,
        "methods": ["ngram", "suffix"],
    }  # fmt: skip


def test_empty_and_nested() -> None:
    assert parse_object("{}") == {}
    assert parse_object("{a:{b:c}}") == {"a": {"b": "c"}}


@pytest.mark.parametrize(
    "text", ["", "ngram", "[1]", "{method}", "{method:ngram", "{:x}", "{a:1}}", "{a b:1}", "5", '"x"', "{a:,}"]
)
def test_what_is_no_object(text: str) -> None:
    with pytest.raises(ValueError, match="wants one JSON object in single quotes"):
        parse_object(text)


def without_quotes(value: object) -> str:
    return json.dumps(value, separators=(",", ":")).replace('"', "")


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=5))
def test_quotes_lost_and_found(block: dict[str, object]) -> None:
    assert parse_object(json.dumps(block)) == block
    assert parse_object(without_quotes(block)) == block


@given(st.text(max_size=40))
def test_any_text_gives_an_object_or_the_one_error(text: str) -> None:
    try:
        assert isinstance(parse_object(text), dict)
    except ValueError as error:
        assert "wants one JSON object" in str(error)


def test_pairs_are_told_from_models_and_addresses() -> None:
    assert looks_like_pair("method:ngram")
    assert looks_like_pair("num_speculative_tokens:5")
    assert not looks_like_pair("Qwen/Qwen3-8B")
    assert not looks_like_pair("http://host:8000")
    assert not looks_like_pair("method:")


def test_values_behind_a_key() -> None:
    assert parse_value("5") == 5
    assert parse_value("ngram") == "ngram"
    assert parse_value("ngram,suffix") == "ngram,suffix"
    assert parse_value('"x"') == "x"
    assert parse_value("[1, a]") == [1, "a"]
    assert parse_value("") == ""
