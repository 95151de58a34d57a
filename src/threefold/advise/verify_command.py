"""What of the advice is measured when --verify asks for it: which levers, on which loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from threefold.advise.evaluate import Evaluator
from threefold.advise.facts import MachineFacts
from threefold.advise.levers import QUANTISED, Variant, base_variant
from threefold.advise.options import AdviseOptions
from threefold.advise.verdict import UNKNOWN
from threefold.advise.verify import Verifier, verify
from threefold.advise.verify_cell import Cell
from threefold.errors import ConfigError

if TYPE_CHECKING:
    from threefold.advise.commands import Case


def check_verification(wanted: AdviseOptions) -> None:
    """Refuse before the work what would change nothing.

    Raises:
        ConfigError: a flag of --verify without it.
    """
    given = {
        "--by-kind": wanted.is_by_kind, "--reload": wanted.is_reloading, "--markdown": wanted.markdown is not None,
        "--awq-model": wanted.awq_model is not None,
    }  # fmt: skip
    alone = [flag for flag, is_given in given.items() if is_given and not wanted.is_verified]
    if alone:
        raise ConfigError(f"{alone[0]} says how --verify measures; give --verify too")
    if wanted.awq_model is not None and not wanted.is_reloading:
        raise ConfigError("--awq-model is a model that --reload loads; give --reload too")


def check_reload(wanted: AdviseOptions, facts: MachineFacts) -> None:
    """The same once the machine is known.

    Raises:
        ConfigError: there is no card, and so no prediction for other weights.
    """
    if wanted.is_reloading and not facts.is_gpu:
        raise ConfigError("--reload verifies quantisation, of which nothing is predicted on a CPU; leave it out")


def verified(case: Case, wanted: AdviseOptions, say: Callable[[str], None]) -> list[Cell]:
    """Predicted against measured for the levers that the advice says anything of.

    Raises:
        ConfigError: nothing can be measured, or no request could be answered.
    """
    loads = verifiers(case, is_by_kind=wanted.is_by_kind)
    users = sorted({min(count, case.facts.max_num_seqs) for count in wanted.users})
    levers = list(_levers(case, wanted, has_text=all(load.has_text for load in loads)))
    return verify(loads, base_variant(case.facts), levers, users, rounds=wanted.rounds, say=say)


def verifiers(case: Case, *, is_by_kind: bool = False) -> list[Verifier]:
    """What measures the load, whole or each kind of request apart; requests that the engine cannot take are left out.

    Raises:
        ConfigError: it can take none.
    """
    from threefold.advise.engine_measure import EngineMeasure

    measure = EngineMeasure(case.engine)
    found = []
    for name, places in _loads(case, _asked(case), is_by_kind):
        part = [case.trace[place] for place in places]
        acceptance = case.advice.assumed["draft_acceptance"]
        evaluator = Evaluator(part, case.replayed.of(places), draft_acceptance=acceptance)
        found.append(Verifier(measure, part, evaluator, name))
    return found


def _asked(case: Case) -> list[int]:
    """Places of requests that this engine can be asked."""
    info = case.engine.loaded().info()
    most = min(info.max_model_len, info.num_blocks * info.block_size)
    places = [place for place, one in enumerate(case.trace) if one.num_prompt_tokens + one.num_output_tokens <= most]
    if not places:
        raise ConfigError(f"every request of the log is longer than the {most} tokens that this engine takes")
    return places


def _levers(case: Case, wanted: AdviseOptions, *, has_text: bool) -> Iterator[Variant]:
    """Those that anything was said of, as far as the log's text and the models at hand go."""
    known = {one.lever for one in case.advice.verdicts if one.verdict != UNKNOWN}
    for lever in case.levers:
        if lever.name not in known or (lever.drafter is not None and not has_text):
            continue
        if lever.name not in QUANTISED or (wanted.is_reloading and lever.name in case.engine.forms):
            yield lever


def _loads(case: Case, places: Sequence[int], is_by_kind: bool) -> list[tuple[str, list[int]]]:
    """(name, places) of what is measured apart."""
    if not is_by_kind:
        return [("", list(places))]
    kinds: dict[str, list[int]] = {}
    for place in places:
        kinds.setdefault(case.trace[place].kind or "other", []).append(place)
    return list(kinds.items())
