from __future__ import annotations

import socket

import pytest

PATHS = ["/v1/models", "/metrics", "/", "/docs", "/openapi.json", "/ping", "/version", "/load", "/server_info", "/nope"]


WRONG = [
    {},
    {"Authorization": "Bearer wrong"},
    {"Authorization": "Bearer "},
    {"Authorization": "Bearer"},
    {"Authorization": "secret-1"},
    {"Authorization": "Basic secret-1"},
    {"Authorization": "Bearer secret-1x"},
    {"Authorization": "Bearer secret-1,secret-2"},
    {"X-Api-Key": "secret-1"},
]


@pytest.mark.parametrize("headers", WRONG)
async def test_without_a_key_everything_is_closed(serve, headers):
    async with serve(api_keys=("secret-1", "secret-2")) as served:
        for path in PATHS:
            for method in ("GET", "POST", "OPTIONS", "HEAD"):
                reply = await served.http.request(method, path, headers=headers)
                assert reply.status_code == 401
                assert reply.headers["www-authenticate"] == "Bearer"
                assert "secret" not in reply.text
        reply = await served.http.get("/v1/models", headers=headers)
        assert reply.json()["error"]["code"] == "invalid_api_key"


async def test_every_key_opens_and_health_is_open(serve):
    async with serve(api_keys=("secret-1", "secret-2")) as served:
        assert (await served.http.get("/health")).status_code == 200
        for key in ("secret-1", "secret-2"):
            for scheme in ("Bearer", "bearer"):
                reply = await served.http.get("/v1/models", headers={"Authorization": f"{scheme} {key}"})
                assert reply.status_code == 200


async def test_two_keys_in_one_request_are_ambiguous(serve):
    async with serve(api_keys=("key",)) as served:
        headers = [("Authorization", "Bearer key"), ("Authorization", "Bearer other")]
        assert (await served.http.get("/v1/models", headers=headers)).status_code == 401


TARGETS = [
    b"//v1/models",
    b"/v1/models/%2e%2e/%2e%2e/health",
    b"/health/../v1/models",
    b"/health%2f..%2fv1/models",
    b"/health/",
    b"/health%00",
    b"/HEALTH",
    b"/v1/models?/health",
    b"/v1/models#/health",
    b"/v1/models;/health",
    b"/v1%2fmodels",
    b"http://server/v1/models",
    b"http://x/health/../v1/models",
]


def test_no_spelling_opens_a_door(client, serve_live):
    with serve_live(client, api_keys=("key",)) as live:
        for target in TARGETS:
            for host in (b"x", b"x/health?", b"x/health#", b"health", b"/health", b""):
                status = status_of(live.port, b"GET %b HTTP/1.1\r\nHost: %b\r\n" % (target, host))
                assert status in (b"401", b"400"), (target, host, status)


def status_of(port, head):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head + b"Connection: close\r\n\r\n")
        return connection.makefile("rb").readline().split()[1]


async def test_request_ids_come_back(serve):
    async with serve(api_keys=("key",)) as served:
        reply = await served.http.get("/health", headers={"X-Request-Id": "abc-1"})
        assert reply.headers["x-request-id"] == "abc-1"
        for bad in ("a b", "x" * 200, "é".encode()):
            reply = await served.http.get("/health", headers={"X-Request-Id": bad})
            assert len(reply.headers["x-request-id"]) == 32
        reply = await served.http.get("/v1/models")
        assert (reply.status_code, "x-request-id" in reply.headers) == (401, True)


async def test_the_request_id_names_the_response(serve):
    async with serve() as served:
        ask = {"prompt": "a", "max_tokens": 1}
        reply = await served.http.post("/v1/completions", json=ask, headers={"X-Request-Id": "abc-1"})
        assert reply.json()["id"] == "cmpl-abc-1"
