"""`LLM` at its edges, without an engine behind it."""

from __future__ import annotations

import pytest

from threefold.engine.llm import LLM
from threefold.errors import InvalidRequestError
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
