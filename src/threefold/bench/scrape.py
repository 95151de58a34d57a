"""What the server counted during a load: /metrics before and after. Knows the `vllm:*` names, no registry."""

from __future__ import annotations

import re
from typing import Any

from threefold.bench.client import Endpoint, TransferError, get

Counters = dict[str, float]

_LINE = re.compile(rb"^(vllm:[a-z_]+)(?:\{([^}]*)\})? ([-+0-9.eEinfaN]+)", re.MULTILINE)
_POSITION = re.compile(rb'position="(\d+)"')
_PREFIX = "vllm:spec_decode_num_"


def parse_counters(page: bytes) -> Counters:
    """Counters of a Prometheus page by name, summed over labels; those by position as `name@position`."""
    counters: Counters = {}
    for name, labels, value in _LINE.findall(page):
        position = _POSITION.search(labels)
        key = name.decode().removesuffix("_total") + (f"@{position[1].decode()}" if position else "")
        counters[key] = counters.get(key, 0.0) + float(value)
    return counters


async def scrape(endpoint: Endpoint) -> Counters:
    """The server's counters now; empty when it offers none."""
    try:
        status, page = await get(endpoint, "/metrics")
    except TransferError:
        return {}
    return parse_counters(page) if status == 200 else {}


def difference(before: Counters, after: Counters) -> dict[str, Any]:
    """Result keys for what changed between two scrapes; speculation's are left out when no draft was verified."""
    delta = {name: value - before.get(name, 0.0) for name, value in after.items()}
    result: dict[str, Any] = {}
    if "vllm:num_preemptions" in delta:
        result["num_preemptions"] = delta["vllm:num_preemptions"]
    queries = delta.get("vllm:prefix_cache_queries", 0.0)
    if queries > 0:
        result["prefix_cache_hit_rate"] = delta.get("vllm:prefix_cache_hits", 0.0) / queries
    num_drafts = delta.get(f"{_PREFIX}drafts", 0.0)
    if num_drafts <= 0:
        return result
    draft_tokens, accepted = delta.get(f"{_PREFIX}draft_tokens", 0.0), delta.get(f"{_PREFIX}accepted_tokens", 0.0)
    by_position = {
        int(name.partition("@")[2]): value
        for name, value in delta.items()
        if name.startswith(f"{_PREFIX}accepted_tokens_per_pos@")
    }
    return {
        **result,
        "spec_decode_num_drafts": int(num_drafts),
        "spec_decode_draft_tokens": int(draft_tokens),
        "spec_decode_accepted_tokens": int(accepted),
        "spec_decode_acceptance_rate": 100 * accepted / draft_tokens if draft_tokens else 0.0,
        "spec_decode_acceptance_length": 1 + accepted / num_drafts,
        "spec_decode_per_position_acceptance_rates": [by_position[at] / num_drafts for at in sorted(by_position)],
    }
