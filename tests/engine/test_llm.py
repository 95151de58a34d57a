"""`LLM` at its edges, without an engine behind it."""

from __future__ import annotations

import pytest

from threefold.engine.llm import LLM
from threefold.errors import InvalidRequestError
from threefold.request import SamplingParams
from threefold.text.template_worker import Template

CHAT = [{"role": "user", "content": "Hello"}]


def with_template(source: str) -> LLM:
    llm = LLM.__new__(LLM)
    llm.__dict__["_template"] = Template(source, {})
    return llm


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "the chat template refuses this chat: roles must alternate"),
        ("{{ messages[3].content }}", "the chat template refuses this chat"),
        ("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "renders more than"),
    ],
)
def test_a_template_that_refuses_a_chat_is_the_callers_to_mend(source: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        with_template(source).render_chat(CHAT)


def test_a_chat_becomes_a_prompt() -> None:
    assert with_template("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}").render_chat(CHAT) == (
        "<user>Hello"
    )


class StrictTokenizer:
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())


@pytest.mark.parametrize("prompts", [None, 5, [1, 2, 3], {"prompt_token_ids": [1]}, [{"prompt": "a"}], [None]])
def test_what_is_no_prompt_is_said(prompts: object) -> None:
    with pytest.raises(InvalidRequestError, match="prompts are a text, a list of texts or"):
        LLM.__new__(LLM).generate(prompts)  # type: ignore[arg-type]


@pytest.mark.parametrize("params", [{"max_tokens": 3}, ["a"], 5])
def test_what_are_no_params_is_said(params: object) -> None:
    with pytest.raises(InvalidRequestError, match="params are SamplingParams, one or a list of them"):
        LLM.__new__(LLM).generate("a", params)  # type: ignore[arg-type]


def test_half_a_pair_is_no_prompt() -> None:
    llm = with_template("{{ messages[0].content }}")
    llm.tokenizer = StrictTokenizer()  # type: ignore[assignment]
    for ask in (lambda: llm.generate("\ud800", SamplingParams()), lambda: llm.chat([{"content": "\ud800"}])):
        with pytest.raises(InvalidRequestError, match="no valid Unicode"):
            ask()
