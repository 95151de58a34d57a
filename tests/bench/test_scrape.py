from threefold.bench.client import Endpoint
from threefold.bench.scrape import difference, parse_counters, scrape

PAGE = b"""# HELP vllm:num_preemptions_total x
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:spec_decode_num_drafts_total{engine="0"} 10.0
vllm:spec_decode_num_drafts_total{engine="1"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 60.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 3.0e+01
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 18.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 12.0
vllm:prefix_cache_queries_total 100.0
vllm:prefix_cache_hits_total 25.0
python_gc_objects_collected_total{generation="0"} 372.0
nonsense
"""


def test_counters_are_summed_over_labels() -> None:
    counters = parse_counters(PAGE)
    assert counters["vllm:spec_decode_num_drafts"] == 20
    assert counters["vllm:spec_decode_num_accepted_tokens"] == 30
    assert counters["vllm:spec_decode_num_accepted_tokens_per_pos@1"] == 12


def test_what_changed() -> None:
    assert difference({}, parse_counters(PAGE)) == {
        "num_preemptions": 2.0,
        "prefix_cache_hit_rate": 0.25,
        "spec_decode_num_drafts": 20,
        "spec_decode_draft_tokens": 60,
        "spec_decode_accepted_tokens": 30,
        "spec_decode_acceptance_rate": 50.0,
        "spec_decode_acceptance_length": 2.5,
        "spec_decode_per_position_acceptance_rates": [0.9, 0.6],
    }


def test_nothing_changed_or_nothing_there() -> None:
    page = parse_counters(PAGE)
    assert difference(page, page) == {"num_preemptions": 0.0}
    assert difference({}, {}) == {}


async def test_scraping(sse_server) -> None:
    assert await scrape(sse_server.endpoint) == {}
    sse_server.pages["/metrics"] = PAGE
    assert (await scrape(sse_server.endpoint))["vllm:num_preemptions"] == 2
    assert await scrape(Endpoint("127.0.0.1", 1)) == {}
