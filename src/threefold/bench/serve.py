"""Load on a running server: find the model, warm up, scrape, run the closed loop, scrape again. Prints nothing."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import msgspec

from threefold.bench.client import Body, Connection, Endpoint, TransferError, get
from threefold.bench.load import Load, RequestForm
from threefold.bench.measure import goodput, measure, parse_goodput
from threefold.bench.options import LoadOptions, TargetOptions
from threefold.bench.progress import show_progress
from threefold.bench.scrape import difference, scrape
from threefold.bench.workload import Prompt, Workload
from threefold.errors import ConfigError

DEFAULT_CONCURRENCY = 16


def bench_server(workload: Workload, load: LoadOptions, target: TargetOptions) -> dict[str, Any]:
    """Send the workload and return the figures; Ctrl-C ends the load and keeps what was measured.

    Raises:
        ConfigError: the address, a header or a limit is malformed, or nothing answers there.
    """
    limits = parse_goodput(load.goodput)
    endpoint = Endpoint.from_url(target.url, request_headers(target))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        result = runner.run(bench_endpoint(endpoint, workload, load, target))
    outcomes = result.pop("outcomes")
    if limits:
        result.update(goodput(outcomes, result["duration"], limits))
    return result


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A uvloop loop where there is one: it halves what a streamed chunk costs the client."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def bench_endpoint(
    endpoint: Endpoint, workload: Workload, load: LoadOptions, target: TargetOptions
) -> dict[str, Any]:
    """As `bench_server`, within an event loop; `outcomes` in the result holds every request."""
    model = target.model or await find_model(endpoint)
    form = RequestForm(
        api=target.endpoint,
        model=model,
        max_tokens=load.max_tokens,
        temperature=load.temperature,
        ignore_eos=load.ignore_eos,
        seed=load.shuffle_seed,
        extra=target.extra_body,
    )
    concurrency = load.concurrency or DEFAULT_CONCURRENCY
    if load.num_warmups:
        warmup = Load(endpoint, form, concurrency=concurrency, timeout_s=target.timeout_s)
        # Texts of their own, so that they fill no prefix cache with the prompts to come.
        await warmup.run([Prompt(f"Warm-up number {index}: say something.") for index in range(load.num_warmups)])
    if target.reset_prefix_cache:
        await _reset_prefix_cache(endpoint)
    before = await scrape(endpoint)
    run = Load(endpoint, form, concurrency=concurrency, timeout_s=target.timeout_s)
    await run_load(run, workload)
    counted = difference(before, await scrape(endpoint))
    return {
        "endpoint_type": "openai-chat" if target.endpoint == "chat" else "openai",
        "backend": "threefold-bench",
        "url": target.url,
        "model_id": model,
        **describe_load(workload, load, concurrency),
        **measure(run.outcomes, run.duration_s, concurrency),
        "num_interrupted": len(run.running),
        **counted,
        "outcomes": run.outcomes,
    }


async def run_load(run: Load, workload: Workload) -> None:
    """Run a load with its progress shown; the first Ctrl-C stops it, a second one ends the process as usual."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        run.stop()

    loop.add_signal_handler(signal.SIGINT, stop)
    progress = asyncio.create_task(show_progress(run, len(workload.prompts)))
    try:
        await run.run(workload.prompts)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        progress.cancel()
        await asyncio.gather(progress, return_exceptions=True)


def describe_load(workload: Workload, load: LoadOptions, concurrency: int) -> dict[str, Any]:
    """The result's keys that say what was sent."""
    return {
        "label": load.label,
        "dataset": workload.dataset,
        "dataset_sha256": workload.dataset_sha256,
        "group": workload.group,
        "num_prompts": len(workload.prompts),
        "num_distinct_prompts": workload.num_distinct,
        "max_concurrency": concurrency,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_tokens": load.max_tokens,
        "temperature": load.temperature,
        "ignore_eos": load.ignore_eos,
        "seed": load.shuffle_seed,
    }


async def find_model(endpoint: Endpoint) -> str:
    """The first model that the server lists.

    Raises:
        ConfigError: nothing answers, or not with a list of models.
    """
    where = f"{endpoint.host}:{endpoint.port}"
    try:
        status, body = await get(endpoint, "/v1/models")
    except TransferError as error:
        raise ConfigError(f"no server at {where} ({error}); start one with: threefold serve") from None
    if status != 200:
        hint = "give --api-key" if status == 401 else "give the model's name: --model NAME"
        raise ConfigError(f"{where} answers HTTP {status} to GET /v1/models; {hint}")
    try:
        name = msgspec.json.decode(body)["data"][0]["id"]
    except (msgspec.DecodeError, KeyError, IndexError, TypeError):
        raise ConfigError(f"{where} lists no model; give its name: --model NAME") from None
    return str(name)


async def _reset_prefix_cache(endpoint: Endpoint) -> None:
    connection = Connection(endpoint)
    try:
        status = await connection.exchange(endpoint.request("POST", "/reset_prefix_cache", b"{}"), Body())
    except TransferError as error:
        raise ConfigError(f"--reset-prefix-cache: {error}") from None
    finally:
        connection.close()
    if status != 200:
        raise ConfigError(f"--reset-prefix-cache: the server answers HTTP {status} to POST /reset_prefix_cache")


def request_headers(target: TargetOptions) -> tuple[tuple[str, str], ...]:
    """The key and the further headers of every request.

    Raises:
        ConfigError: a header is not NAME=VALUE.
    """
    headers = [("Authorization", f"Bearer {target.api_key}")] if target.api_key else []
    for header in target.header:
        name, separator, value = header.partition("=")
        if not separator or not name or any(character in header for character in "\r\n"):
            raise ConfigError(f"--header {header}: wants NAME=VALUE")
        headers.append((name, value))
    return tuple(headers)
