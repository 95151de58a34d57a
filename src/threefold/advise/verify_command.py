"""What of the advice is measured when --verify asks for it: which levers, on which loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from threefold.advise.facts import MachineFacts
from threefold.advise.levers import QUANTISED, Variant, base_variant
from threefold.advise.options import AdviseOptions
from threefold.advise.verdict import UNKNOWN
from threefold.advise.verify import verify
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
        "--by-kind": wanted.is_by_kind, "--markdown": wanted.markdown is not None,
    }  # fmt: skip
    alone = [flag for flag, is_given in given.items() if is_given and not wanted.is_verified]
    if alone:
        raise ConfigError(f"{alone[0]} says how --verify measures; give --verify too")
    if wanted.awq_model is not None and not wanted.is_reloading:
        raise ConfigError("--awq-model is a model that --reload loads; give --reload too")


def users_of(wanted: AdviseOptions, facts: MachineFacts) -> list[int]:
    """Numbers of users to verify at."""
    return sorted({min(count, facts.max_num_seqs) for count in wanted.users})


def verified(case: Case, wanted: AdviseOptions, say: Callable[[str], None]) -> list[Cell]:
    """Predicted against measured for the levers that the advice says anything of.

    Raises:
        ConfigError: nothing can be measured, or no request could be answered.
    """
    loads = case.measured.loads
    levers = list(_levers(case, has_text=all(load.has_text for load in loads)))
    users = users_of(wanted, case.facts)
    return verify(loads, base_variant(case.facts), levers, users, rounds=wanted.rounds, say=say)


def _levers(case: Case, *, has_text: bool) -> Iterator[Variant]:
    """Those that anything was said of, as far as the log's text and the forms that were measured go."""
    known = {one.lever for one in case.advice.verdicts if one.verdict != UNKNOWN}
    for lever in case.levers:
        if lever.name not in known or (lever.drafter is not None and not has_text):
            continue
        if lever.name not in QUANTISED or lever.name in case.measured.forms:
            yield lever
