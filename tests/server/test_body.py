from __future__ import annotations

import json

import pytest

PATHS = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]


NO_OBJECTS = [
    b"",
    b"{",
    b"nonsense",
    b"[]",
    b"null",
    b'"text"',
    b"\xff\xfe",
    b'{"prompt": "\xff"}',
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "\\udc00x"}',
    b'{"a": NaN}',
    b'{"a": 1e999}',
    b"{" * 10_000,
    b"[" * 200_000,
    b'{"a":' * 100 + b"1" + b"}" * 100,
    b'{"a":' + b"9" * 5000 + b"}",
]


@pytest.mark.parametrize("path", PATHS)
async def test_bodies_that_are_no_object_are_refused(serve, path):
    async with serve() as served:
        for body in NO_OBJECTS:
            reply = await served.http.post(path, content=body, headers={"content-type": "application/json"})
            assert reply.status_code == 400, body[:50]
            assert reply.json()["error"]["type"] == "invalid_request_error"
            assert len(reply.content) < 1500


async def test_depth_is_counted_and_wide_bodies_are_not_deep(serve):
    async with serve() as served:
        deep = {"prompt": "a", "x": json.loads("[" * 70 + "]" * 70)}
        reply = await served.http.post("/v1/completions", json=deep)
        assert (reply.status_code, "deep" in reply.text) == (400, True)
        wide = {"prompt": "a" + "[{" * 100, "max_tokens": 1, "x": [[]] * 200}
        assert (await served.http.post("/v1/completions", json=wide)).status_code == 200


async def test_the_content_type_must_be_json(serve):
    async with serve() as served:
        for content_type, status in (
            ("text/plain", 415),
            ("multipart/form-data; boundary=x", 415),
            ("application/jsonp", 415),
            ("application/json; charset=utf-8", 200),
            ("Application/JSON", 200),
            ("application/vnd.api+json", 200),
        ):
            reply = await served.http.post(
                "/tokenize", content=b'{"prompt": "a"}', headers={"content-type": content_type}
            )
            assert reply.status_code == status, content_type


async def test_a_body_over_the_limit_is_413_with_and_without_a_length(serve):
    async def chunks():
        for _ in range(20):
            yield b" " * 100

    async with serve(max_body_bytes=1000) as served:
        headers = {"content-type": "application/json"}
        for content in (b" " * 1001, chunks()):
            reply = await served.http.post("/v1/completions", content=content, headers=headers)
            assert reply.status_code == 413
            assert "1000 bytes" in reply.json()["error"]["message"]
        reply = await served.http.post("/tokenize", content=b'{"prompt":"a"}' + b" " * 900, headers=headers)
        assert reply.status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "0.5"),
        ("temperature", -1),
        ("temperature", True),
        ("max_tokens", 1.5),
        ("max_tokens", 0),
        ("max_tokens", 2**31),
        ("n", 17),
        ("n", None.__class__.__name__),
        ("stop", ["a"] * 5),
        ("stop", [""]),
        ("stop", {"a": 1}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"1": 1000}),
        ("logit_bias", {"300": 1}),
        ("seed", 2**63),
        ("top_p", 0),
        ("stop_token_ids", [2**70]),
        ("allowed_token_ids", []),
        ("stream", "yes"),
        ("stream_options", []),
    ],
)
async def test_wrong_types_and_ranges_name_the_field(serve, field, value):
    async with serve() as served:
        reply = await served.http.post("/v1/completions", json={"prompt": "a", field: value})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == field


async def test_many_faults_are_reported_shortly(serve):
    async with serve() as served:
        ask = {"messages": [{"role": 1, "content": {}} for _ in range(50)]}
        error = (await served.http.post("/v1/chat/completions", json=ask)).json()["error"]
    assert error["param"] == "messages.0.role"
    assert "more" in error["message"]
    assert len(error["message"]) < 600


async def test_a_large_value_is_not_echoed_whole(serve):
    async with serve() as served:
        reply = await served.http.post("/v1/completions", json={"prompt": "a", "n": "x" * 100_000})
    assert reply.status_code == 400
    assert len(reply.content) < 600


async def test_what_is_no_body_as_it_is_says_what_to_send(serve):
    async with serve() as served:
        reply = await served.http.post("/v1/completions", content=b"")
        assert reply.json()["error"]["message"] == "the body is empty; send a JSON object"
        reply = await served.http.post("/tokenize", content=b"\x1f\x8b", headers={"content-encoding": "gzip"})
        assert reply.status_code == 415
        assert reply.json()["error"]["message"] == "send the body without content-encoding, got 'gzip'"
        reply = await served.http.post(
            "/tokenize", content=b'{"prompt": "a"}', headers={"content-encoding": "Identity"}
        )
        assert reply.status_code == 200
