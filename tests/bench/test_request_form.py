import json

from threefold.bench.prompt import MadeUp, Prompt
from threefold.bench.request_form import RequestForm


def body(form: RequestForm, prompt: Prompt, index: int = 0) -> dict:
    return json.loads(form.body(prompt, index))


def test_none_takes_a_field_away() -> None:
    form = RequestForm(model="m", extra={"stream_options": None, "top_k": 3})
    sent = body(form, Prompt("x"))
    assert "stream_options" not in sent
    assert sent["top_k"] == 3


def test_a_body_of_the_data_set_keeps_its_own_fields() -> None:
    form = RequestForm(api="completions", model="ours", max_tokens=9, temperature=0.0, seed=5)
    own = Prompt("", body=json.dumps({"messages": [], "temperature": 0.7, "max_completion_tokens": 3}))
    sent = body(form, own, 2)
    assert (sent["model"], sent["temperature"], sent["seed"], sent["stream"]) == ("ours", 0.7, 7, True)
    assert sent["max_completion_tokens"] == 9
    assert "max_tokens" not in sent
    assert form.path(own) == "/v1/chat/completions"
    assert form.path(Prompt("x")) == "/v1/completions"
    assert RequestForm().path(Prompt("", body='{"prompt": "p"}')) == "/v1/completions"


def test_made_up_words() -> None:
    prompt = Prompt("", made_up=MadeUp(((1, 30),)))
    assert len(body(RequestForm(tokens_per_word=1.5), prompt)["messages"][0]["content"].split()) == 20
    assert len(body(RequestForm(api="completions"), prompt)["prompt"].split()) == 30
