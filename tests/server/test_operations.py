from __future__ import annotations

import re

from threefold import __version__


async def test_probes_follow_the_engine(serve, client):
    async with serve() as served:
        for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
            reply = await served.http.request(method, path)
            assert (reply.status_code, reply.content) == (200, b"")
        client.is_alive = False
        for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
            assert (await served.http.request(method, path)).status_code == 503
        reply = await served.http.post("/v1/completions", json={"prompt": "a"})
        assert (reply.status_code, reply.json()["error"]["type"]) == (500, "server_error")


async def test_version_load_and_reset(serve):
    async with serve() as served:
        assert (await served.http.get("/version")).json() == {"version": __version__}
        load = (await served.http.get("/load")).json()
        assert (load["server_load"], load["num_running"], load["kv_cache_usage"]) == (0, 2, 0.25)
        assert (await served.http.post("/reset_prefix_cache")).json() == {"success": True}


async def test_server_info_tells_limits_and_no_secrets(serve):
    async with serve(api_keys=("secret-key",), ssl_keyfile="/etc/keys/server.pem") as served:
        reply = await served.http.get("/server_info", headers={"authorization": "Bearer secret-key"})
    assert "secret" not in reply.text
    assert "server.pem" not in reply.text
    assert reply.json()["limits"]["max_json_depth"] == 64
    assert reply.json()["model"]["max_model_len"] == 4096


async def test_the_status_page_needs_nothing_from_elsewhere(serve):
    async with serve() as served:
        reply = await served.http.get("/")
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert not re.search(r"https?://|//[a-z]|@import|url\(", reply.text)
