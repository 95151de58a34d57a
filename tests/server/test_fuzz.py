"""Whatever is sent, nobody gets a 5xx but for what is not built (501), and the server lives on."""

from __future__ import annotations

import json
import string

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from threefold.server.refusals import UNBUILT
from threefold.server.schema import ChatCompletionRequest, CompletionRequest

FUZZ = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
FIELDS = sorted(
    {*ChatCompletionRequest.model_fields, *CompletionRequest.model_fields, *UNBUILT, "tools", "tool_choice"}
)

text = st.text(st.characters(exclude_categories=()), max_size=20)  # surrogates and NUL among them
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-3, 40), st.floats(allow_nan=False, allow_infinity=False), text
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=12
)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "assistant", "tool", ""]), "content": values}),
    max_size=4,
)
bodies = st.fixed_dictionaries(
    {},
    optional={"prompt": text | values, "messages": messages | values, "model": st.just("fake-model") | values}
    | dict.fromkeys(FIELDS, values),
)


@pytest.fixture(scope="module")
def http(shared_live):
    with httpx.Client(base_url=shared_live.url, timeout=30) as client:
        yield client


def check(reply):
    assert reply.status_code < 500 or reply.status_code == 501, reply.text
    if reply.status_code >= 400:
        assert reply.json()["error"].keys() == {"message", "type", "param", "code"}


@FUZZ
@given(
    path=st.sampled_from(["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]),
    base=st.sampled_from([{}, {"prompt": "a"}, {"messages": [{"role": "user", "content": "a"}]}, {"tokens": [1]}]),
    body=bodies,
)
def test_no_body_makes_a_server_error(http, path, base, body):
    content = json.dumps({**body, **base}).encode()
    check(http.post(path, content=content, headers={"content-type": "application/json"}))


@FUZZ
@given(path=st.sampled_from(["/v1/chat/completions", "/tokenize"]), content=st.binary(max_size=60))
def test_no_bytes_make_a_server_error(http, path, content):
    check(http.post(path, content=content, headers={"content-type": "application/json"}))


@FUZZ
@given(name=st.sampled_from(FIELDS), value=values)
def test_one_odd_field_beside_a_good_request(http, name, value):
    ask = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2} | {name: value}
    check(
        http.post(
            "/v1/chat/completions", content=json.dumps(ask).encode(), headers={"content-type": "application/json"}
        )
    )


@FUZZ
@given(target=st.text(string.ascii_letters + "/%.~;:@!$&'()*+,=?-_0129", max_size=40))
def test_no_path_makes_a_server_error(http, target):
    with httpx.Client(timeout=30) as client:
        request = client.build_request("GET", http.base_url)
        request.url = request.url.copy_with(raw_path=b"/" + target.encode())
        reply = client.send(request)
    assert reply.status_code < 500


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=str)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
def test_requests_made_from_the_description(shared_live, path, mode):
    description = schemathesis.openapi.from_url(f"{shared_live.url}/openapi.json")

    @settings(FUZZ, max_examples=8)
    @given(case=description[path]["POST"].as_strategy(generation_mode=mode))
    def run(case):
        check(case.call())

    run()
