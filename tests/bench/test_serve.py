import asyncio
import json

from threefold.bench import serve
from threefold.bench.arrivals import Arrivals, plan_arrivals
from threefold.bench.load_options import LoadOptions
from threefold.bench.prompt import WORDS, MadeUp, Prompt
from threefold.bench.serve_options import ArrivalOptions
from threefold.bench.target_options import TargetOptions
from threefold.bench.workload import Workload

WORKLOAD = Workload(tuple(Prompt(f"p{index}") for index in range(6)), 6, "x.jsonl", "abc", "all")


async def bench(server, load: LoadOptions, target: TargetOptions, arrival: ArrivalOptions | None = None):
    plan = plan_arrivals(WORKLOAD, arrival or ArrivalOptions(), load.concurrency, 0)
    run, counted = await serve.bench_endpoint(server.endpoint, WORKLOAD, load, target, plan)
    return run, {**serve.load_figures(run, plan, (99,)), **counted, "num_prompts": len(WORKLOAD.prompts)}


async def test_a_whole_run(sse_server) -> None:
    sse_server.pages["/v1/models"] = json.dumps({"data": [{"id": "served"}]}).encode()
    sse_server.pages["/reset_prefix_cache"] = b"{}"
    load = LoadOptions(concurrency=2, num_warmups=3)
    run, result = await bench(sse_server, load, TargetOptions(reset_prefix_cache=True))
    assert (result["completed"], result["failed"], result["num_interrupted"]) == (6, 0, 0)
    assert run.form.model == "served"
    assert len(sse_server.bodies) == 9
    asked = [body["messages"][0]["content"] for body in sse_server.bodies]
    assert all(text.startswith("Warm-up") for text in asked[:3])
    assert sum("POST /reset_prefix_cache" in head for head in sse_server.heads) == 1
    assert serve.last_words(result) == ""
    assert serve.remarks(run, WORKLOAD) == []


async def test_completions_of_a_named_model(sse_server) -> None:
    await bench(sse_server, LoadOptions(), TargetOptions(model="m", endpoint="completions"))
    assert {body["model"] for body in sse_server.bodies} == {"m"}


async def test_a_rate(sse_server) -> None:
    run, result = await bench(sse_server, LoadOptions(), TargetOptions(model="m"), ArrivalOptions(request_rate=100))
    assert run.duration_s >= 0.06  # the last of six at a hundred a second
    assert result["max_send_lag_ms"] >= 0
    assert result["steady_output_throughput"] > 0


async def test_a_server_without_usage(sse_server) -> None:
    sse_server.has_usage = False
    run, result = await bench(sse_server, LoadOptions(), TargetOptions(model="m"))
    assert (result["total_output_tokens"], result["tokens_counted_by"]) == (30, "pieces")
    assert any("sends no usage" in line for line in serve.remarks(run, WORKLOAD))


async def test_what_is_said_of_a_server_that_goes_away(sse_server) -> None:
    sse_server.behaviour = lambda index: "bow out" if index == 3 else ""
    _, result = await bench(sse_server, LoadOptions(concurrency=1), TargetOptions(model="m"))
    assert serve.last_words(result) == (
        "the server went away (connection refused) after 3 of 6 requests; the figures are of those"
    )
    assert not result["interrupted"]


async def test_what_is_said_when_nothing_succeeds(sse_server) -> None:
    sse_server.behaviour = lambda index: "503"
    _, result = await bench(sse_server, LoadOptions(), TargetOptions(model="m"))
    assert serve.last_words(result) == "no request succeeded: 6 x HTTP 503: the queue is full"


async def test_made_up_prompts_follow_the_server_s_tokenizer(sse_server) -> None:
    sse_server.pages["/tokenize"] = json.dumps({"count": 2 * len(WORDS)}).encode()
    workload = Workload((Prompt("", made_up=MadeUp(((1, 100),))),), 1, "x", "y", "all", remarks=("made up",))
    run, _ = await serve.bench_endpoint(
        sse_server.endpoint, workload, LoadOptions(), TargetOptions(model="m"), Arrivals(None, 1)
    )
    assert len(sse_server.bodies[0]["messages"][0]["content"].split()) == 50
    said = serve.remarks(run, workload)
    assert said == ["made up", "prompts made up to 100 tokens are 7 at the server, its template included"]


async def test_the_loop_is_the_fast_one() -> None:
    loop = serve.new_event_loop()
    assert isinstance(loop, asyncio.AbstractEventLoop)
    assert type(loop).__module__.startswith("uvloop")
    loop.close()
