"""The client that users have, against a real socket."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest

from threefold.request import FinishReason

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def sdk(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_chat(sdk):
    reply = sdk.chat.completions.create(model="fake-model", messages=MESSAGES, max_completion_tokens=4, n=2)
    assert [choice.message.content for choice in reply.choices] == ["abcd", "bcde"]
    assert [choice.finish_reason for choice in reply.choices] == ["length", "length"]
    assert reply.choices[0].message.role == "assistant"
    assert reply.usage.completion_tokens == 8
    assert reply.usage.prompt_tokens_details.cached_tokens == 4
    assert reply.usage.completion_tokens_details.accepted_prediction_tokens == 8


def test_chat_stream(sdk):
    stream = sdk.chat.completions.create(
        model="fake-model",
        messages=MESSAGES,
        max_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=2,
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "abcd"
    assert chunks[1].choices[0].logprobs.content[0].top_logprobs[1].token == "A"
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + 4
    assert chunks[-2].choices[0].finish_reason == "length"


def test_comments_in_a_silent_stream_are_skipped(make_client, serve_live):
    slow = make_client()
    slow.delay_s = 0.1
    with serve_live(slow, sse_keep_alive_interval_s=0.02) as server:
        with httpx.stream("POST", f"{server.url}/v1/completions", json={"prompt": "x", "stream": True}) as reply:
            assert ": keep-alive" in [line for line, _ in zip(reply.iter_lines(), range(8), strict=False)]
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as sdk:
            chunks = list(sdk.completions.create(model="fake-model", prompt="x", max_tokens=3, stream=True))
    assert [chunk.choices[0].text for chunk in chunks] == ["a", "b", "c"]


def test_the_sdk_gathers_a_stream_itself(sdk, client):
    client.last_reason = FinishReason.STOP  # of a cut answer the SDK makes an error
    with sdk.chat.completions.stream(model="fake-model", messages=MESSAGES, max_tokens=3) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "abc"


def test_completions(sdk):
    reply = sdk.completions.create(model="fake-model", prompt=["x", "y"], max_tokens=2, logprobs=2, echo=True)
    assert [choice.text for choice in reply.choices] == ["xab", "yab"]
    assert reply.choices[0].logprobs.tokens == ["x", "a", "b"]
    assert reply.choices[1].logprobs.text_offset == [0, 1, 2]
    chunks = sdk.completions.create(model="fake-model", prompt=[1, 2], max_tokens=3, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "abc"


def test_models(sdk):
    assert [model.id for model in sdk.models.list()] == ["fake-model", "alias"]
    assert sdk.models.retrieve("alias").id == "alias"


def test_errors_are_the_sdks_own_classes(sdk, client):
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model="fake-model", messages=MESSAGES, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.chat.completions.create(model="other", messages=MESSAGES)
    assert caught.value.code == "model_not_found"
    client.is_full = True
    with pytest.raises(openai.InternalServerError) as caught:
        sdk.chat.completions.create(model="fake-model", messages=MESSAGES)
    assert caught.value.status_code == 503


def test_a_fault_in_a_stream_is_raised(sdk, client):
    client.fault_after = 2
    stream = sdk.chat.completions.create(model="fake-model", messages=MESSAGES, max_tokens=4, stream=True)
    texts = []
    with pytest.raises(openai.APIError, match="a fault"):
        texts += [chunk.choices[0].delta.content for chunk in stream]


def test_a_wrong_key(client, serve_live):
    with serve_live(client, api_keys=("right",)) as live:
        with (
            openai.OpenAI(base_url=f"{live.url}/v1", api_key="wrong") as sdk,
            pytest.raises(openai.AuthenticationError),
        ):
            sdk.models.list()
        with openai.OpenAI(base_url=f"{live.url}/v1", api_key="right") as sdk:
            assert sdk.models.retrieve("alias").id == "alias"


def test_the_sdk_retries_overload_and_not_what_is_unbuilt(live, client):
    client.is_full = True
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=1) as sdk:
        overloaded = sdk.with_options(max_retries=1)
        with pytest.raises(openai.InternalServerError):
            overloaded.completions.create(model="fake-model", prompt="a")
        assert len(client.asked) == 2
        with pytest.raises(openai.InternalServerError) as caught:
            sdk.chat.completions.create(model="fake-model", messages=MESSAGES, response_format={"type": "json_object"})
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert live.app.state.server.metrics.rejections["queue_full"] == 2


async def test_the_async_client_and_its_cancellation(live, client):
    client.delay_s = 0.005
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="x") as sdk:
        stream = await sdk.chat.completions.create(model="fake-model", messages=MESSAGES, max_tokens=4000, stream=True)
        async for _ in stream:
            break
        await stream.close()
    for _ in range(1000):
        if client.num_closed_early:
            break
        await asyncio.sleep(0.005)
    assert client.num_open == 0
