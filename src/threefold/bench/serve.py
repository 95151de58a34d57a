"""Load on a running server: find the model, warm up, scrape, run the load, scrape again. Prints nothing."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from typing import Any

from threefold.bench.arrivals import Arrivals, describe_arrivals, plan_arrivals
from threefold.bench.client import Endpoint
from threefold.bench.keep import detailed, metadata
from threefold.bench.load import Load
from threefold.bench.load_options import LoadOptions
from threefold.bench.measure import goodput, measure, parse_goodput
from threefold.bench.progress import show_progress
from threefold.bench.prompt import Prompt
from threefold.bench.request_form import RequestForm
from threefold.bench.scrape import difference, scrape
from threefold.bench.serve_options import ArrivalOptions, KeepOptions
from threefold.bench.steady import Window, closed_window, open_window, steady_figures
from threefold.bench.target import endpoint_of, find_model, reset_prefix_cache, tokens_per_word
from threefold.bench.target_options import TargetOptions
from threefold.bench.workload import Workload

_LATE_S = 0.1
"""A client that sends this much later than an open loop asks is named in the result."""


def bench_server(
    workload: Workload,
    load: LoadOptions,
    target: TargetOptions,
    arrival: ArrivalOptions = ArrivalOptions(),  # noqa: B008 frozen
    keep: KeepOptions = KeepOptions(),  # noqa: B008 frozen
) -> dict[str, Any]:
    """Send the workload and return the figures; Ctrl-C ends the load and keeps what was measured.

    Raises:
        ConfigError: the address, a header, a limit or the arrivals are malformed, or nothing answers there.
    """
    plan = plan_arrivals(workload, arrival, load.concurrency, load.shuffle_seed)
    added, limits = metadata(keep), parse_goodput(load.goodput)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        run, counted = runner.run(bench_endpoint(endpoint_of(target), workload, load, target, plan))
    return {
        "endpoint_type": "openai-chat" if target.endpoint == "chat" else "openai",
        "backend": "threefold-bench",
        "url": target.address,
        "model_id": run.form.model,
        **describe_load(workload, load),
        **describe_arrivals(arrival, plan),
        **load_figures(run, plan, keep.metric_percentiles),
        **(goodput(run.outcomes, run.duration_s, limits) if limits else {}),
        **counted,
        **(detailed(run.outcomes, run.start_s) if keep.save_detailed else {}),
        "remarks": remarks(run, workload),
        **added,
    }


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A uvloop loop where there is one: it halves what a streamed chunk costs the client."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def bench_endpoint(
    endpoint: Endpoint, workload: Workload, load: LoadOptions, target: TargetOptions, arrivals: Arrivals
) -> tuple[Load, dict[str, Any]]:
    """Run the load within an event loop.

    Returns:
        The load, and the result's keys for what the server counted meanwhile.
    """
    form = await _form(endpoint, workload, load, target)
    if load.num_warmups:
        warmup = Load(endpoint, form, concurrency=arrivals.concurrency, timeout_s=target.timeout_s)
        # Texts of their own, so that they fill no prefix cache with the prompts to come.
        await warmup.run([Prompt(f"Warm-up number {index}: say something.") for index in range(load.num_warmups)])
    if target.reset_prefix_cache:
        await reset_prefix_cache(endpoint)
    before = await scrape(endpoint)
    run = Load(endpoint, form, concurrency=arrivals.concurrency, timeout_s=target.timeout_s)
    await run_load(run, workload, arrivals.at_s)
    return run, difference(before, await scrape(endpoint))


async def _form(endpoint: Endpoint, workload: Workload, load: LoadOptions, target: TargetOptions) -> RequestForm:
    form = RequestForm(
        api=target.endpoint,
        model=target.model or await find_model(endpoint),
        max_tokens=load.output_len or load.max_tokens,
        temperature=load.temperature,
        ignore_eos=load.ignore_eos,
        seed=load.shuffle_seed,
        extra=target.extra_body,
    )
    if any(prompt.made_up is not None for prompt in workload.prompts):
        return replace(form, tokens_per_word=await tokens_per_word(endpoint, form.model) or 1.0)
    return form


async def run_load(run: Load, workload: Workload, at_s: tuple[float, ...] | None = None) -> None:
    """Run a load with its progress shown; the first Ctrl-C stops it, a second one ends the process as usual."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        run.stop()

    loop.add_signal_handler(signal.SIGINT, stop)
    progress = asyncio.create_task(show_progress(run, len(workload.prompts)))
    try:
        await run.run(workload.prompts, at_s)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        progress.cancel()
        await asyncio.gather(progress, return_exceptions=True)


def load_figures(run: Load, arrivals: Arrivals, percentiles: tuple[float, ...]) -> dict[str, Any]:
    """The result's keys for a load that is over: the whole of it, and the part in which what was asked held."""
    return {
        **measure(run.outcomes, run.duration_s, percentiles),
        **steady_figures(run.outcomes, steady_window(run, arrivals), percentiles),
        "num_interrupted": len(run.running),
        "interrupted": run.is_stopped and not run.gone,
        "server_gone": run.gone,
        **({"max_send_lag_ms": run.max_lag_s * 1e3} if arrivals.at_s is not None else {}),
    }


def steady_window(run: Load, arrivals: Arrivals) -> Window | None:
    """When what was asked held; a ramp and a trace ask for no steady load."""
    if arrivals.at_s is not None:
        return open_window(run.outcomes) if arrivals.has_steady_rate else None
    spans = [(outcome.start_s, outcome.end_s) for outcome in run.outcomes]
    spans += [(outcome.start_s, run.start_s + run.duration_s) for outcome in run.running.values()]
    return closed_window(spans, arrivals.concurrency or len(spans))


def remarks(run: Load, workload: Workload) -> list[str]:
    """What a reader of the figures must know."""
    found = list(workload.remarks)
    if workload.num_skipped:
        found.append(f"{workload.num_skipped} entries of {workload.dataset} ask nothing and were left out")
    if any(not outcome.is_counted and not outcome.error for outcome in run.outcomes):
        found.append("the server sends no usage: output tokens are the stream's pieces, prompt tokens unknown")
    wanted = sum(prompt.made_up.num_tokens for prompt in workload.prompts if prompt.made_up is not None)
    counted = sum(outcome.prompt_tokens for outcome in run.outcomes)
    if wanted and counted and len(run.outcomes) == len(workload.prompts):
        found.append(f"prompts made up to {wanted:,} tokens are {counted:,} at the server, its template included")
    if run.max_lag_s > _LATE_S:
        found.append(
            f"the client was up to {run.max_lag_s * 1e3:,.0f} ms late: it could not send at the rate asked for"
        )
    return found


def describe_load(workload: Workload, load: LoadOptions) -> dict[str, Any]:
    """The result's keys that say what was sent."""
    return {
        "label": load.label,
        "dataset": workload.dataset,
        "dataset_sha256": workload.dataset_sha256,
        "group": workload.group,
        "num_prompts": len(workload.prompts),
        "num_distinct_prompts": workload.num_distinct,
        "max_tokens": load.output_len or load.max_tokens,
        "temperature": load.temperature,
        "ignore_eos": load.ignore_eos,
        "seed": load.shuffle_seed,
    }


def last_words(result: dict[str, Any]) -> str:
    """One line when the load did not go as it was asked; "" when it did."""
    sent = f"{result['completed']} of {result['num_prompts']} requests"
    if result.get("server_gone"):
        return f"the server went away ({result['server_gone']}) after {sent}; the figures are of those"
    if result.get("interrupted") or result["num_interrupted"]:
        cut = f", {result['num_interrupted']} in flight were given up" if result["num_interrupted"] else ""
        return f"stopped by Ctrl-C after {sent}{cut}; the figures are of those"
    if not result["completed"]:
        reasons = "; ".join(f"{count} x {why}" for why, count in list(result["failures"].items())[:3])
        return f"no request succeeded: {reasons or 'none was answered'}"
    return ""
