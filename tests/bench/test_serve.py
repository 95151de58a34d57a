import asyncio
import json

import pytest

from threefold.bench import serve
from threefold.bench.client import Endpoint
from threefold.bench.options import LoadOptions, TargetOptions
from threefold.bench.workload import Prompt, Workload
from threefold.errors import ConfigError

WORKLOAD = Workload(tuple(Prompt(f"p{index}") for index in range(6)), 6, "x.jsonl", "abc", "all")
MODELS = json.dumps({"data": [{"id": "served"}]}).encode()


async def bench(server, load: LoadOptions, target: TargetOptions) -> dict:
    return await serve.bench_endpoint(server.endpoint, WORKLOAD, load, target)


async def test_a_whole_run(sse_server) -> None:
    sse_server.pages["/v1/models"] = MODELS
    sse_server.pages["/reset_prefix_cache"] = b"{}"
    result = await bench(sse_server, LoadOptions(concurrency=2, num_warmups=3), TargetOptions(reset_prefix_cache=True))
    assert (result["completed"], result["failed"], result["num_interrupted"]) == (6, 0, 0)
    assert (result["model_id"], result["dataset_sha256"], result["max_concurrency"]) == ("served", "abc", 2)
    assert len(sse_server.bodies) == 9
    asked = [body["messages"][0]["content"] for body in sse_server.bodies]
    assert all(text.startswith("Warm-up") for text in asked[:3])
    assert sum("POST /reset_prefix_cache" in head for head in sse_server.heads) == 1


async def test_completions_of_a_named_model(sse_server) -> None:
    result = await bench(sse_server, LoadOptions(), TargetOptions(model="m", endpoint="completions"))
    assert result["endpoint_type"] == "openai"
    assert {body["model"] for body in sse_server.bodies} == {"m"}


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (None, "answers HTTP 404"),
        (b"[]", "lists no model"),
        (b'{"data": []}', "lists no model"),
        (b"{", "lists no model"),
    ],
)
async def test_servers_without_models(sse_server, page: bytes | None, said: str) -> None:
    if page is not None:
        sse_server.pages["/v1/models"] = page
    with pytest.raises(ConfigError, match=said):
        await serve.find_model(sse_server.endpoint)


async def test_no_server() -> None:
    with pytest.raises(ConfigError, match=r"no server at 127.0.0.1:1 .*start one with: threefold serve"):
        await serve.find_model(Endpoint("127.0.0.1", 1))


async def test_no_cache_to_reset(sse_server) -> None:
    with pytest.raises(ConfigError, match="HTTP 404 to POST /reset_prefix_cache"):
        await bench(sse_server, LoadOptions(), TargetOptions(model="m", reset_prefix_cache=True))


async def test_headers_reach_the_server(sse_server) -> None:
    target = TargetOptions(api_key="secret", header=("X-A=b=c",))
    endpoint = Endpoint.from_url(f"http://127.0.0.1:{sse_server.endpoint.port}", serve.request_headers(target))
    sse_server.pages["/v1/models"] = MODELS
    await serve.find_model(endpoint)
    assert "Authorization: Bearer secret\r\n" in sse_server.heads[0]
    assert "X-A: b=c\r\n" in sse_server.heads[0]


@pytest.mark.parametrize("header", ["novalue", "=x", "a=b\r\nc: d"])
def test_headers_that_are_none(header: str) -> None:
    with pytest.raises(ConfigError, match="wants NAME=VALUE"):
        serve.request_headers(TargetOptions(header=(header,)))


async def test_the_loop_is_the_fast_one() -> None:
    loop = serve.new_event_loop()
    assert isinstance(loop, asyncio.AbstractEventLoop)
    assert type(loop).__module__.startswith("uvloop")
    loop.close()
