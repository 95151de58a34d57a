import json

import pytest

from threefold.bench.forms import FORMS, Sizes, parse_entry
from threefold.bench.load_options import DATASET_NAMES
from threefold.bench.prompt import Prompt


def parse(entry: object, form: str = "auto", sizes: Sizes | None = None, index: int = 0) -> Prompt | None:
    return parse_entry(entry, form, sizes or Sizes(), index)


def test_every_form_can_be_asked_for() -> None:
    assert set(DATASET_NAMES) == {*FORMS, "auto", "trace", "random"}


@pytest.mark.parametrize(
    ("entry", "form", "prompt"),
    [
        ({"category": "qa", "turns": ["a", "b"]}, "spec_bench", Prompt("a", "qa")),
        ({"prompt": "a", "output_tokens": 4}, "custom", Prompt("a", max_tokens=4)),
        ({"task_id": "x", "prompt": "def f():", "test": "…"}, "humaneval", Prompt("def f():", "code")),
        (
            {"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "q"},
                               {"from": "gpt", "value": "a" * 19}]},
            "sharegpt",
            Prompt("q", max_tokens=4),
        ),
        ({"conversations": [{"from": "human", "value": "q"}]}, "sharegpt", Prompt("q")),
        ({"conversations": [{"from": "gpt", "value": "a"}]}, "sharegpt", None),
        ({"timestamp": 1500, "prompt": "a", "output_tokens": 3}, "trace", Prompt("a", max_tokens=3, at_s=1.5)),
    ],
)  # fmt: skip
def test_forms(entry: dict, form: str, prompt: Prompt | None) -> None:
    assert parse(entry, form) == prompt
    assert parse(entry) == prompt


def test_messages() -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    assert json.loads(parse({"messages": messages}).body) == {"messages": messages}


def test_openai_batches() -> None:
    body = {"model": "gpt", "messages": [{"role": "user", "content": "q"}], "max_tokens": 5, "stream": False}
    prompt = parse({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body})
    assert prompt.max_tokens == 5
    assert json.loads(prompt.body) == {"messages": body["messages"], "max_tokens": 5}
    assert json.loads(parse({"body": {"prompt": "p"}}).body) == {"prompt": "p"}


def test_a_trace_s_blocks() -> None:
    entry = {"timestamp": 27, "input_length": 1100, "output_length": 60, "hash_ids": [0, 14, 15]}
    prompt = parse(entry)
    assert prompt.made_up.pieces == ((0, 512), (14, 512), (15, 76))
    assert (prompt.max_tokens, prompt.at_s) == (60, 0.027)


def test_what_no_hash_covers_is_the_entry_s_own() -> None:
    entry = {"timestamp": 0, "input_length": 600, "hash_ids": [3]}
    assert parse(entry, index=4).made_up.pieces == ((3, 512), (-5, 88))
    assert parse({"timestamp": 0, "input_length": 600}, index=5).made_up.pieces == ((-6, 600),)
    assert parse({"timestamp": 0, "input_length": 100, "hash_ids": [1, 2]}).made_up.pieces == ((1, 100),)


def test_equal_hashes_are_equal_beginnings() -> None:
    one = parse({"timestamp": 0, "input_length": 1300, "hash_ids": [0, 1, 2]}, index=0).made_up.text().split()
    two = parse({"timestamp": 0, "input_length": 1500, "hash_ids": [0, 1, 9]}, index=1).made_up.text().split()
    assert one[:1024] == two[:1024]
    assert one[1024:] != two[1024:1300]


def test_lengths_are_scaled_with_their_blocks() -> None:
    sizes = Sizes(block_tokens=512, scale=0.125)
    prompt = parse({"timestamp": 0, "input_length": 1100, "output_length": 3, "hash_ids": [0, 1, 2]}, sizes=sizes)
    assert prompt.made_up.pieces == ((0, 64), (1, 64), (2, 10))
    assert prompt.max_tokens == 1


@pytest.mark.parametrize(
    ("entry", "form", "said"),
    [
        (5, "auto", "got a int"),
        ({}, "auto", "wants 'turns'"),
        ({"prompt": "x"}, "spec_bench", "wants 'turns'"),
        ({"prompt": "x"}, "sharegpt", "wants 'conversations'"),
        ({"conversations": ["x"]}, "auto", "wants 'conversations'"),
        ({"turns": ["x"]}, "humaneval", "wants 'prompt'"),
        ({"messages": []}, "auto", "wants 'messages'"),
        ({"body": []}, "auto", "wants 'body'"),
        ({"body": {}}, "auto", "wants 'prompt'"),
        ({"body": {"prompt": "p"}, "url": "/v1/chat/completions"}, "auto", "does not fit its body"),
        ({"prompt": "x"}, "trace", "wants 'timestamp'"),
        ({"timestamp": -1, "prompt": "x"}, "auto", "wants 'timestamp'"),
        ({"timestamp": True, "prompt": "x"}, "auto", "wants 'timestamp'"),
        ({"timestamp": 0}, "auto", "wants 'prompt'"),
        ({"timestamp": 0, "input_length": 0}, "auto", "input_length must be"),
        ({"timestamp": float("nan"), "prompt": "x"}, "auto", "wants 'timestamp'"),
        ({"timestamp": 0, "input_length": 5, "hash_ids": ["a"]}, "auto", "wants 'hash_ids'"),
        ({"timestamp": 0, "input_length": 5, "output_length": 1.5}, "auto", "output_length must be"),
    ],
)
def test_what_is_wrong_is_said(entry: object, form: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(entry, form)
