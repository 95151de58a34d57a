from __future__ import annotations

import re

import httpx


async def test_unknown_paths_and_methods_answer_in_openai_form(serve):
    async with serve() as served:
        for method, path, status in (("GET", "/nope", 404), ("DELETE", "/v1/models", 405), ("GET", "/v1/", 404)):
            reply = await served.http.request(method, path)
            assert reply.status_code == status
            assert reply.json()["error"].keys() == {"message", "type", "param", "code"}


async def test_a_fault_of_ours_is_a_plain_500(serve):
    async with serve() as served:
        served.client.reset_prefix_cache = None  # calling it raises TypeError
        reply = await served.http.post("/reset_prefix_cache")
        assert reply.status_code == 500
        assert "NoneType" not in reply.text
        assert reply.json()["error"]["type"] == "server_error"


async def test_the_description_lists_bodies_and_can_be_switched_off(serve):
    async with serve() as served:
        described = (await served.http.get("/openapi.json")).json()
        assert "ChatCompletionRequest" in described["components"]["schemas"]
        assert set(described["paths"]) >= {"/v1/chat/completions", "/v1/completions", "/metrics", "/health"}
    async with serve(enable_docs=False) as served:
        assert (await served.http.get("/openapi.json")).status_code == 404
        assert (await served.http.get("/docs")).status_code == 404


async def test_the_page_of_the_api_needs_nothing_from_elsewhere(serve):
    async with serve() as served:
        reply = await served.http.get("/docs")
        assert (await served.http.get("/redoc")).status_code == 404
    assert reply.headers["content-type"].startswith("text/html")
    assert reply.headers["content-security-policy"].startswith("default-src 'none'")
    assert not re.search(r"https?://|//[a-z]|@import|url\(|<script", reply.text)
    assert "POST /v1/chat/completions" in reply.text
    assert "<a href='#ChatCompletionRequest'>" in reply.text
    assert (
        "<tr><th>messages</th><td>list of <a href='#ChatMessage'>ChatMessage</a></td><td>needed</td></tr>" in reply.text
    )
    assert "<tr><th>stop</th><td>string or list of string</td><td></td></tr>" in reply.text


async def test_cors_is_closed_unless_configured(serve):
    ask = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    async with serve() as served:
        reply = await served.http.get("/health", headers={"Origin": "https://example.org"})
        assert "access-control-allow-origin" not in reply.headers
    async with serve(allowed_origins=("https://example.org",), api_keys=("key",)) as served:
        reply = await served.http.options("/v1/models", headers=ask)
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == "https://example.org"


async def test_a_path_that_is_not_there_says_what_is(serve):
    async with serve() as served:
        for path in ("/v1/embeddings", "/chat/completions", "/" + "x" * 5000, "/%ff"):
            reply = await served.http.post(path, json={})
            assert reply.status_code == 404
            message = reply.json()["error"]["message"]
            assert message.startswith("no such path: '/")
            assert "/v1/chat/completions" in message
            assert len(message) < 400


def test_head_is_answered_as_get(live):
    with httpx.Client(base_url=live.url) as http:
        for path in ("/health", "/ping", "/v1/models", "/"):
            head, get = http.head(path), http.get(path)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers.get("content-length") == get.headers.get("content-length")
        assert http.head("/v1/completions").status_code == 405
