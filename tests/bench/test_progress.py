from threefold.bench.client import Endpoint
from threefold.bench.load import Load
from threefold.bench.outcome import Outcome
from threefold.bench.progress import describe, recent_tokens_per_s, show_progress
from threefold.bench.request_form import RequestForm


def load_with(*outcomes: Outcome) -> Load:
    load = Load(Endpoint("x", 1), RequestForm(), concurrency=2)
    load.outcomes += outcomes
    load.running[5] = Outcome()
    return load


def test_live_numbers() -> None:
    done = Outcome(start_s=1.0, chunk_times_s=[1.5, 1.7, 2.4], output_tokens=10)
    text = describe(load_with(done, Outcome(error="x")))
    assert text.startswith("1 running · ")
    assert "TTFT 500.0 ms · TPOT 100.0 ms" in text
    assert text.endswith(" · 1 failed")
    assert "failed" not in describe(load_with(done))
    assert "TTFT" not in describe(load_with())


def test_tokens_a_second_are_those_of_the_last_few() -> None:
    load = load_with(
        Outcome(chunk_times_s=[1.0, 98.0, 99.0], output_tokens=9), Outcome(chunk_times_s=[2.0], output_tokens=50)
    )
    load.running[5].chunk_times_s += [97.0, 97.5, 98.0, 98.5]
    assert recent_tokens_per_s(load, 100.0) == 2.0  # six of the answer, four of the one that runs, in five seconds


async def test_silent_without_a_terminal(capsys) -> None:
    await show_progress(load_with(), 3)
    assert capsys.readouterr().err == ""
