"""Forms of the model, each loaded once: with an engine that only counts."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import ClassVar

import pytest

from threefold.advise import measured_forms
from threefold.advise.levers import FP8, KV8, Assumptions, base_variant, lever_variants
from threefold.advise.measured_forms import measure_forms
from threefold.advise.options import AdviseOptions
from threefold.advise.replay import NO_REPLAY
from threefold.advise.result import LoadResult
from threefold.advise.trace import TraceRequest, block_names
from threefold.advise.verify import verify
from threefold.errors import ConfigError


class CountingEngine:
    """Has the model in two other forms; remembers what was loaded and run."""

    forms: ClassVar = [FP8, KV8]

    def __init__(self, max_model_len: int = 1000) -> None:
        self.events: list[str] = []
        self._form: str | None = None
        self._info = SimpleNamespace(max_model_len=max_model_len, num_blocks=100, block_size=16)

    def other_forms(self) -> Sequence[str]:
        return self.forms

    def loaded(self, form: str = ""):
        if form != self._form:
            self.events.append(f"load {form or 'as it is'}")
        self._form = form
        return self

    def at_hand(self):
        return self.loaded(self._form or "")

    def info(self):
        return self._info

    def run(self, variant, asks, users):
        self.loaded(variant.name if variant.name in self.forms else "")
        if len(asks) > users:
            self.events.append(f"run {variant.name} {users}")
        return LoadResult(1.0, output_tokens=100, num_done=len(asks))


@pytest.fixture
def measured(monkeypatch, facts):
    monkeypatch.setattr(measured_forms, "measure_machine", lambda loaded: facts)
    monkeypatch.setattr(measured_forms, "EngineMeasure", lambda engine: engine)
    trace = [TraceRequest(40, 8, block_names(list(range(40)))) for _ in range(12)]

    def measure(engine, wanted, *, is_run):
        return measure_forms(engine, wanted, trace, NO_REPLAY, lambda line: None, is_run=is_run)

    return measure


def test_each_form_is_loaded_once_and_run_while_it_is_there(measured, facts) -> None:
    engine = CountingEngine()
    wanted = AdviseOptions(is_verified=True, is_reloading=True, users=(1, 64), rounds=1)
    found = measured(engine, wanted, is_run=True)
    assert engine.events == [f"load {FP8}", f"run {FP8} 1", f"load {KV8}", f"run {KV8} 1", "load as it is"]
    assert list(found.forms) == [FP8, KV8]
    engine.events.clear()
    levers = [one for one in lever_variants(facts, {}, Assumptions(), found.forms) if one.name in (FP8, KV8)]
    cells = verify(found.loads, base_variant(facts), levers, [1], rounds=1, say=lambda line: None)
    assert [(cell.lever, cell.users) for cell in cells] == [(FP8, 1), (KV8, 1)]
    assert not [event for event in engine.events if event.startswith("load")]


def test_what_is_not_run_need_not_fit(measured) -> None:
    assert measured(CountingEngine(max_model_len=10), AdviseOptions(), is_run=False).loads == []
    with pytest.raises(ConfigError, match="longer than the 10 tokens"):
        measured(CountingEngine(max_model_len=10), AdviseOptions(), is_run=True)


def test_kinds_are_loads_of_their_own(measured) -> None:
    (load,) = measured(CountingEngine(), AdviseOptions(is_by_kind=True), is_run=True).loads
    assert (load.load, load.most_users) == ("other", 12)
