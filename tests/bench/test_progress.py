from threefold.bench.client import Endpoint
from threefold.bench.load import Load, RequestForm
from threefold.bench.outcome import Outcome
from threefold.bench.progress import describe, show_progress


def load_with(*outcomes: Outcome) -> Load:
    load = Load(Endpoint("x", 1), RequestForm(), concurrency=2)
    load.outcomes += outcomes
    load.running.add(5)
    return load


def test_live_numbers() -> None:
    text = describe(load_with(Outcome(output_tokens=10), Outcome(error="x")))
    assert text.startswith("1 running · ")
    assert text.endswith(" tok/s · 1 failed")
    assert "failed" not in describe(load_with(Outcome(output_tokens=10)))


async def test_silent_without_a_terminal(capsys) -> None:
    await show_progress(load_with(), 3)
    assert capsys.readouterr().err == ""
