"""The HTTP server alone: tokens a second through the real server, client included, with a fake engine behind it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from threefold.bench.alone_options import HttpOptions
from threefold.bench.arrivals import Arrivals
from threefold.bench.child import child_server
from threefold.bench.client import Endpoint
from threefold.bench.fake_engine import MODEL_NAME, FakeEngineOptions
from threefold.bench.load import Load
from threefold.bench.measure import PERCENTILES
from threefold.bench.prompt import Prompt
from threefold.bench.request_form import RequestForm
from threefold.bench.serve import load_figures, new_event_loop, run_load
from threefold.bench.workload import Workload


def bench_http(asked: HttpOptions) -> dict[str, Any]:
    """Start the server in a process of its own, stream from it, end it, return the figures.

    Raises:
        EngineDeadError: the server did not start.
    """
    with fake_server(FakeEngineOptions(asked.streams, asked.step_ms / 1e3)) as url:
        form = RequestForm(api=asked.endpoint, model=MODEL_NAME, max_tokens=asked.max_tokens, ignore_eos=True)
        load = Load(Endpoint.from_url(url), form, concurrency=asked.streams)
        prompts = tuple(Prompt(f"Stream number {index}") for index in range(asked.requests))
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(run_load(load, Workload(prompts, len(prompts), "", "", "")))
    result = load_figures(load, Arrivals(None, asked.streams), PERCENTILES)
    num_chunks = sum(len(outcome.chunk_times_s) for outcome in load.outcomes if not outcome.error)
    return {
        "endpoint_type": "openai-chat" if asked.endpoint == "chat" else "openai",
        "max_concurrency": asked.streams,
        "num_prompts": asked.requests,
        "max_tokens": asked.max_tokens,
        "step_ms": asked.step_ms,
        **result,
        "chunk_throughput": num_chunks / load.duration_s,
        "tokens_per_chunk": result["total_output_tokens"] / num_chunks if num_chunks else None,
    }


@contextmanager
def fake_server(options: FakeEngineOptions) -> Iterator[str]:
    """The server's address while it runs."""
    command = [sys.executable, "-m", "threefold.bench.fake_engine", msgspec.json.encode(options).decode()]
    with child_server(command) as url:
        yield url
