import json
from pathlib import Path

import pytest

from threefold.bench.measure import measure
from threefold.bench.outcome import Outcome
from threefold.bench.report import WIDTH, print_table, table_lines, write_json
from threefold.errors import ConfigError

DONE = Outcome(start_s=0.0, end_s=2.0, chunk_times_s=[1.0, 2.0], prompt_tokens=3, output_tokens=2, is_counted=True)
RESULT = {**measure([DONE, Outcome(error="HTTP 503: [busy]")], 2.0), "max_concurrency": 1, "num_interrupted": 0}


def test_the_layout_that_people_know() -> None:
    lines = table_lines(RESULT)
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert lines[-1] == "=" * WIDTH
    assert "Successful requests:                     1" in lines
    assert "Output token throughput (tok/s):         1.00" in lines
    assert "---------------Time to First Token----------------" in lines
    assert "Mean TTFT (ms):                          1000.00" in lines
    assert "P99 E2EL (ms):                           2000.00" in lines
    assert "1 x HTTP 503: [busy]" in lines
    assert not [line for line in lines if "Speculative" in line or "goodput" in line]


def test_speculation_and_goodput_when_there_are_any() -> None:
    speculation = {
        "spec_decode_num_drafts": 10, "spec_decode_draft_tokens": 30, "spec_decode_accepted_tokens": 15,
        "spec_decode_acceptance_rate": 50.0, "spec_decode_acceptance_length": 2.5, "request_goodput": 0.5,
        "spec_decode_per_position_acceptance_rates": [0.9, 0.6],
    }  # fmt: skip
    lines = table_lines({**RESULT, **speculation})
    assert "Acceptance length:                       2.50" in lines
    assert "  Position 1:                            60.00" in lines
    assert "Request goodput (req/s):                 0.50" in lines


def test_what_a_reader_must_know() -> None:
    steady = {"steady_duration": 5.0, "steady_completed": 3, "steady_output_throughput": 7.5, "remarks": ["beware"]}
    lines = table_lines({**RESULT, **steady, "request_rate": "inf"}, metrics=("ttft",), percentiles=(99,))
    assert lines[lines.index("Steady State".center(WIDTH, "-")) + 1] == "Window (s):                              5.00"
    assert lines[-2] == "beware"
    assert "Request rate configured (RPS):           inf" in lines
    assert not [line for line in lines if "TPOT" in line or "P90" in line]


def test_what_nothing_completed_leaves() -> None:
    lines = table_lines({**measure([Outcome(error="x")], 1.0), "max_concurrency": 1})
    assert "Failed requests:                         1" in lines
    assert not [line for line in lines if "TTFT" in line]


def test_printing_keeps_brackets_and_lines(capsys: pytest.CaptureFixture[str]) -> None:
    lines = table_lines({**RESULT, "failures": {"x" * 200 + "[/bold]": 1}})
    print_table(lines)
    assert capsys.readouterr().out.splitlines() == lines


def test_json(tmp_path: Path) -> None:
    write_json(tmp_path / "new" / "out.json", RESULT)
    assert json.loads((tmp_path / "new" / "out.json").read_text())["completed"] == 1
    with pytest.raises(ConfigError, match="cannot write it"):
        write_json(tmp_path, RESULT)
