"""Latency targets of an engine: what holds them, and one line on what the machine can do about them."""

from __future__ import annotations

from collections.abc import Mapping

from threefold.draft.controller import Controller, DraftPolicy
from threefold.engine.loaded import LoadedEngine
from threefold.engine.resolve import Reason
from threefold.schedule.slo import Slo
from threefold.schedule.tempo import BEST

SHOWN_CONTEXT_TOKENS = 512
"""Tokens of each request when the running set is foretold."""


def hold_targets(loaded: LoadedEngine, policy: DraftPolicy) -> tuple[Slo | None, list[Reason]]:
    """What holds the targets that were asked for, and why it will do what it does; None = none were asked.

    With a policy that learns what steps cost the curve is the policy's; else it is measured, or read, for the targets.
    """
    targets = dict(loaded.opened.config.slo.targets)
    if not targets:
        return None, []
    if isinstance(policy, Controller):
        slo = Slo(policy.cost, targets, is_learning=False)
        source = "by the step costs above"
    else:
        curve, source = loaded.cost_curve()
        slo = Slo(curve, targets)
    asked = ", ".join(f"{name} {limit:g} ms" for name, limit in targets.items())
    said = foretold(slo, targets, loaded.plan.max_num_seqs, loaded.opened.limits.max_num_batched_tokens)
    return slo, [Reason("slo", asked, f"{said}; {source}")]


def foretold(slo: Slo, targets: Mapping[str, float], max_rows: int, max_tokens: int) -> str:
    """What the machine can do about targets, in one line."""
    best_ms = slo.best_tpot_ms()
    said = []
    if "tpot" in targets:
        num_rows = slo.most_rows(SHOWN_CONTEXT_TOKENS, max_rows)
        if targets["tpot"] < best_ms:
            said.append(f"one request alone takes {best_ms:.1f} ms a token, so tpot is held at {BEST * best_ms:.1f} ms")
        said.append(f"up to {num_rows} running requests of {SHOWN_CONTEXT_TOKENS} tokens")
    if "ttft" in targets:
        longest = slo.longest_prompt(max_tokens)
        alone = f"prompts of up to {longest} tokens" if longest else f"no prompt, for one token takes {best_ms:.1f} ms"
        said.append(f"alone on the machine {alone} keep ttft")
    return ", ".join(said)
