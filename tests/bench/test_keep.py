from pathlib import Path

import pytest

from threefold.bench.keep import detailed, metadata, result_path
from threefold.bench.outcome import Outcome
from threefold.bench.serve_options import KeepOptions
from threefold.errors import ConfigError

RESULT = {"model_id": "org/model", "request_rate": 2.0, "max_concurrency": 4, "endpoint_type": "openai", "label": None}


def test_nothing_is_written_unless_asked() -> None:
    assert result_path(KeepOptions(), RESULT) is None
    assert result_path(KeepOptions(result_dir="x"), RESULT) is None


def test_names() -> None:
    assert result_path(KeepOptions(result_filename="a.json"), RESULT) == Path("a.json")
    assert result_path(KeepOptions(save_result=True, result_dir="d", result_filename="a.json"), RESULT) == Path(
        "d/a.json"
    )
    made = result_path(KeepOptions(save_result=True), RESULT)
    assert made.name.startswith("openai-2.0qps-concurrency4-model-20")
    assert made.suffix == ".json"
    open_loop = {**RESULT, "label": "mine", "max_concurrency": None}
    assert result_path(KeepOptions(save_detailed=True), open_loop).name.startswith("mine-2.0qps-model-")


def test_metadata() -> None:
    assert metadata(KeepOptions(metadata=("a=b=c", "d="))) == {"a": "b=c", "d": ""}
    with pytest.raises(ConfigError, match="--metadata x: wants NAME=VALUE"):
        metadata(KeepOptions(metadata=("x",)))


def test_requests_in_the_order_in_which_they_were_sent() -> None:
    late = Outcome(start_s=12.0, chunk_times_s=[13.0, 15.0], prompt_tokens=3, output_tokens=2, due_s=11.0)
    lost = Outcome(start_s=11.0, error="lost")
    lists = detailed([late, lost], 10.0)
    assert lists["start_times"] == [1.0, 2.0]
    assert lists["ttfts"] == [None, 1.0]
    assert lists["itls"] == [[], [2.0]]
    assert lists["latencies"] == [None, 3.0]
    assert lists["queue_times"] == [0.0, 1.0]
    assert lists["errors"] == ["lost", ""]
    assert {len(values) for values in lists.values()} == {2}
