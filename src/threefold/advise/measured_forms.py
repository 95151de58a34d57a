"""Figures of a machine with the model as it is and in other forms, each loaded once.

A card has room for one form at a time, and loading takes longer than measuring. So what is to be verified of a form is
run while it is there, before anything is predicted; the model as it is comes last and stays. Knows nothing about
advice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from threefold.advise.engine_measure import EngineMeasure, OneEngine
from threefold.advise.evaluate import Evaluator
from threefold.advise.facts import MachineFacts
from threefold.advise.levers import Variant
from threefold.advise.measured import measure_machine
from threefold.advise.options import AdviseOptions
from threefold.advise.replay import Replay
from threefold.advise.trace import TraceRequest
from threefold.advise.verify import Verifier
from threefold.advise.verify_command import users_of
from threefold.errors import ConfigError


@dataclass(slots=True)
class Measured:
    """What was measured before anything is said."""

    facts: MachineFacts
    """With the model as it is."""
    forms: dict[str, MachineFacts] = field(default_factory=dict)
    """With the model in other forms, by lever."""
    loads: list[Verifier] = field(default_factory=list)
    """What can be run: the log, or each kind of its requests apart."""


def measure_forms(
    engine: OneEngine,
    wanted: AdviseOptions,
    trace: Sequence[TraceRequest],
    replayed: Replay,
    say: Callable[[str], None],
    *,
    is_run: bool,
) -> Measured:
    """Measure steps, and of other forms than the one that stays what --verify wants to know.

    Args:
        engine: not loaded yet, or with the model as it is.
        wanted: what to measure.
        trace: the load.
        replayed: what drafters do for it.
        say: told what is being done.
        is_run: the load itself will be run.

    Raises:
        ConfigError: there is no card for other forms, or no request that the engine can take.
    """
    forms: dict[str, MachineFacts] = {}
    loads: list[Verifier] = []
    for form in engine.other_forms() if wanted.is_reloading else ():
        say(f"loading the model with {form} and measuring what steps cost")
        forms[form] = measure_machine(engine.loaded(form))
        if wanted.is_verified:
            loads = loads or _loads(engine, wanted, trace, replayed)
            _run(Variant(form, forms[form].machine(), forms[form].settings()), loads, wanted, forms[form])
    say("loading the model and measuring what steps cost")
    facts = measure_machine(engine.loaded())
    if is_run and not loads:
        loads = _loads(engine, wanted, trace, replayed)
    return Measured(facts, forms, loads)


def _run(variant: Variant, loads: Sequence[Verifier], wanted: AdviseOptions, facts: MachineFacts) -> None:
    for load in loads:
        for users in users_of(wanted, facts):
            if users <= load.most_users:
                load.measure([variant], users, wanted.rounds)


def _loads(engine: OneEngine, wanted: AdviseOptions, trace: Sequence[TraceRequest], replayed: Replay) -> list[Verifier]:
    """The load, whole or each kind of request apart; requests that the engine cannot take are left out."""
    measure = EngineMeasure(engine)
    found = []
    for name, places in _parts(trace, _asked(engine, trace), wanted.is_by_kind):
        part = [trace[place] for place in places]
        evaluator = Evaluator(part, replayed.of(places), draft_acceptance=wanted.draft_acceptance)
        found.append(Verifier(measure, part, evaluator, name))
    return found


def _asked(engine: OneEngine, trace: Sequence[TraceRequest]) -> list[int]:
    """Places of requests that this engine can be asked."""
    info = engine.at_hand().info()
    most = min(info.max_model_len, info.num_blocks * info.block_size)
    places = [place for place, one in enumerate(trace) if one.num_prompt_tokens + one.num_output_tokens <= most]
    if not places:
        raise ConfigError(f"every request of the log is longer than the {most} tokens that this engine takes")
    return places


def _parts(trace: Sequence[TraceRequest], places: Sequence[int], is_by_kind: bool) -> list[tuple[str, list[int]]]:
    """(name, places) of what is measured apart."""
    if not is_by_kind:
        return [("", list(places))]
    kinds: dict[str, list[int]] = {}
    for place in places:
        kinds.setdefault(trace[place].kind or "other", []).append(place)
    return list(kinds.items())
