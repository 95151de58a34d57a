"""Where a result goes and what it holds beyond its figures, as `vllm bench serve`'s users type and read it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from threefold.bench.outcome import Outcome
from threefold.bench.serve_options import KeepOptions
from threefold.errors import ConfigError


def metadata(keep: KeepOptions) -> dict[str, str]:
    """The keys that the command line adds.

    Raises:
        ConfigError: one is not NAME=VALUE.
    """
    found = {}
    for pair in keep.metadata:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise ConfigError(f"--metadata {pair}: wants NAME=VALUE")
        found[name] = value
    return found


def result_path(keep: KeepOptions, result: dict[str, Any]) -> Path | None:
    """The file that --save-result, --save-detailed or a name for it ask for; None when nothing does."""
    if not (keep.save_result or keep.save_detailed or keep.result_filename):
        return None
    name = keep.result_filename or _name_of(result)
    return Path(keep.result_dir) / name if keep.result_dir else Path(name)


def _name_of(result: dict[str, Any]) -> str:
    users = f"-concurrency{result['max_concurrency']}" if result.get("max_concurrency") is not None else ""
    model = str(result["model_id"]).rsplit("/", maxsplit=1)[-1]
    moment = datetime.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return f"{result.get('label') or result['endpoint_type']}-{result['request_rate']}qps{users}-{model}-{moment}.json"


def detailed(outcomes: Sequence[Outcome], origin_s: float) -> dict[str, Any]:
    """Each request's figures in lists of one order, that of their beginnings; times in seconds, texts are not kept."""
    ordered = sorted(outcomes, key=lambda outcome: outcome.start_s)
    return {
        "input_lens": [outcome.prompt_tokens for outcome in ordered],
        "output_lens": [outcome.output_tokens for outcome in ordered],
        "ttfts": [outcome.ttft_s if outcome.chunk_times_s else None for outcome in ordered],
        "itls": [outcome.gaps_s for outcome in ordered],
        "latencies": [outcome.latency_s if outcome.chunk_times_s else None for outcome in ordered],
        "start_times": [outcome.start_s - origin_s for outcome in ordered],
        "queue_times": [outcome.queue_s for outcome in ordered],
        "categories": [outcome.category for outcome in ordered],
        "errors": [outcome.error for outcome in ordered],
    }
