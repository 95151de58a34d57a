"""The levers: what each changes in machine, settings and drafts, what it costs, and how sure that is.

A quantised form of the model is a machine of its own where its steps were measured. Where not, it is reckoned: a step's
time is split into reading weights (what one token costs), arithmetic (what one more token costs where the curve is
steep) and reading KV, and the parts are scaled by the bytes and rates of the scheme. Knows nothing about loads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from threefold.advise.curve_executor import Machine
from threefold.advise.facts import MachineFacts
from threefold.advise.simulate import Settings
from threefold.cost import CostCurve

FP8_WEIGHTS, FP8_MATH = 0.66, 0.57
"""Share left of what a step takes for one token, and of arithmetic, in FP8: 2.80 of 4.25 ms, and 103 of 180 ms of a
prompt of 8,192 tokens, Qwen3-8B on an H200. Half the bytes are read, but activations are rounded and the rest stays."""
AWQ_WEIGHTS, AWQ_MATH = 0.45, 1.15
"""The same with four bits: reckoned from the products of one token alone; unpacking costs arithmetic."""
KV8_READ = 1.0
"""Share left of reading KV in 8 bits: what is saved in bytes goes into widening e4m3 (H200, 250 → 267 us)."""
FP8_BYTES, AWQ_BYTES = 0.50, 0.30
"""Share left of the weights' bytes, embedding and head in eight bits."""
FP8, AWQ, KV8 = QUANTISED = ("fp8 weights", "awq weights", "fp8 kv cache")
"""Levers that need the model in another form."""
SUFFIX_BYTES = 100 << 20
"""Host memory of the suffix drafter's index when it is full."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What nobody measured."""

    draft_ratio: float = 0.1
    """A draft model's size over the model's."""
    draft_acceptance: float = 0.6
    """Chance that a draft model's token is right, given that those before it are."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The engine with one lever moved."""

    name: str
    machine: Machine
    settings: Settings
    drafter: str | None = None
    """ngram, suffix, model, or None for no drafts."""
    is_estimate: bool = False
    """True when it rests on the split of the curve or on an assumption, not on readings alone."""
    costs: str = ""
    """What it takes besides time."""
    basis: str = ""
    """Where its figures come from."""


def base_variant(facts: MachineFacts) -> Variant:
    """The engine's own choice, without drafts."""
    return Variant("base", facts.machine(), facts.settings())


def lever_variants(
    facts: MachineFacts,
    propose_ms: Mapping[str, float],
    assumed: Assumptions,
    forms: Mapping[str, MachineFacts] | None = None,
) -> list[Variant]:
    """Every lever, moved alone. Prefix caching is on in the base, so it is moved by turning it off.

    Args:
        facts: of the model as it is.
        propose_ms: time of a proposal, by drafter.
        assumed: what nobody measured.
        forms: of the model in other forms, by lever, as far as they were measured.
    """
    base = base_variant(facts)
    quantised = [_measured(one, (forms or {}).get(one.name)) for one in _quantised(base, facts)]
    return [
        replace(
            base,
            name="prefix caching",
            settings=replace(base.settings, has_prefix_cache=False),
            costs="nothing: blocks that nobody needs",
            basis="block names of the log",
        ),
        _drafting(base, "ngram", propose_ms, "a little host time"),
        _drafting(base, "suffix", propose_ms, f"up to {SUFFIX_BYTES >> 20} MB of host memory"),
        _draft_model(base, facts, assumed),
        *quantised,
    ]


def _drafting(base: Variant, drafter: str, propose_ms: Mapping[str, float], costs: str) -> Variant:
    machine = replace(base.machine, propose_ms=propose_ms.get(drafter, 0.0))
    basis = "the log's answers replayed through the drafter, the real controller"
    return replace(base, name=drafter, machine=machine, drafter=drafter, costs=costs, basis=basis)


def _draft_model(base: Variant, facts: MachineFacts, assumed: Assumptions) -> Variant:
    ratio = assumed.draft_ratio
    blocks = max(int(base.machine.num_blocks * (1 - ratio)) - _blocks_of(facts, ratio * facts.weights_bytes), 1)
    machine = replace(base.machine, draft_ratio=ratio, num_blocks=blocks)
    costs = f"{ratio:.0%} of the weights again ({_size(ratio * facts.weights_bytes)}) and its KV"
    basis = f"assumed: {ratio:g} of the model's size, {assumed.draft_acceptance:.0%} of its tokens right"
    return replace(base, name="draft model", machine=machine, drafter="model", is_estimate=True, costs=costs,
                   basis=basis)  # fmt: skip


def _quantised(base: Variant, facts: MachineFacts) -> list[Variant]:
    split = "the curve's split into weights, arithmetic and KV; --reload measures it"
    math = FP8_MATH if facts.is_gpu else 1.0
    variants = []
    for name, left, weights, arithmetic, costs in (
        (FP8, FP8_BYTES, FP8_WEIGHTS, math, "some accuracy: measure it"),
        (AWQ, AWQ_BYTES, AWQ_WEIGHTS, AWQ_MATH, "accuracy: 4-bit weights cost small models points; measure it"),
    ):
        saved = (1 - left) * facts.weights_bytes
        machine = replace(
            scaled(base.machine, weights, arithmetic, 1.0),
            num_blocks=base.machine.num_blocks + _blocks_of(facts, saved),
        )
        variants.append(
            replace(base, name=name, machine=machine, is_estimate=True, basis=split,
                    costs=f"{costs}; frees {_size(saved)}")
        )  # fmt: skip
    kv = replace(scaled(base.machine, 1.0, 1.0, KV8_READ), num_blocks=_kv8_blocks(base))
    costs = "a little accuracy at long context: measure it; holds 1.9 times the tokens"
    return [*variants, replace(base, name=KV8, machine=kv, is_estimate=True, basis=split, costs=costs)]


def _measured(reckoned: Variant, facts: MachineFacts | None) -> Variant:
    """A lever as its own steps were measured."""
    if facts is None:
        return reckoned
    basis = "steps of the model in this form, measured"
    return replace(reckoned, machine=facts.machine(), is_estimate=False, basis=basis)


def _kv8_blocks(base: Variant) -> int:
    return int(base.machine.num_blocks * 1.9)


def scaled(machine: Machine, weights: float, arithmetic: float, kv: float) -> Machine:
    """The machine with the parts of its steps scaled."""
    prompts = machine.prompts
    return replace(
        machine,
        curve=scaled_curve(machine.curve, weights, arithmetic, kv),
        prompts=None if prompts is None else scaled_curve(prompts, weights, arithmetic, 1.0),
    )


def scaled_curve(curve: CostCurve, weights: float, arithmetic: float, kv: float) -> CostCurve:
    """A curve with its parts scaled.

    Where a step of n tokens takes t(n), arithmetic is s · n with s the curve's steepest lasting slope (its last
    stretch), at most t(n); what is left is the reading of weights.
    """
    data = curve.to_dict()
    (before, before_ms), (last, last_ms) = data["knots"][-2:]
    slope = (last_ms - before_ms) / (last - before)
    knots = []
    for num_tokens, ms in data["knots"]:
        math_ms = min(slope * num_tokens, ms)
        knots.append([num_tokens, weights * (ms - math_ms) + arithmetic * math_ms])
    data["knots"] = _rising(knots)
    data["kv_token_ms"] *= kv
    return CostCurve.from_dict(data)


def _rising(knots: Sequence[Sequence[float]]) -> list[list[float]]:
    rising: list[list[float]] = []
    for num_tokens, ms in knots:
        rising.append([num_tokens, max(ms, rising[-1][1] if rising else ms)])
    return rising


def _blocks_of(facts: MachineFacts, size_bytes: float) -> int:
    block_bytes = facts.kv_token_bytes * facts.block_size
    return int(size_bytes / block_bytes) if block_bytes else 0


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"
