"""A machine as the simulator knows it, and an executor that takes as long as that machine would.

A step takes what the cost curve says for its shape, what drafting takes, and what is beyond the curve: the host's part,
and that few steps take their best time, which is what the curve holds. Steps that feed prompts have a curve of their
own: only the last token of a prompt needs logits, where the curve counts those of every token, and attention goes with
each row's own length, where the curve knows their sum. Tokens come from the log, drafts from its replay. Knows nothing
about arrivals or latencies.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from threefold.advise.traffic import SimRequest
from threefold.cost import CostCurve, StepShape
from threefold.step import RowPlan, RowResult, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class Host:
    """Time of a step that the curve does not have: planning, inputs, sampling, handing tokens over; and how much longer
    steps take in the middle than the best of them, which the curve knows.
    """

    step_ms: float = 0.0
    """Of every step."""
    row_ms: float = 0.0
    """Of every row in it."""
    draft_ms: float = 0.0
    """Of every draft that is verified in it."""
    by_rows: tuple[tuple[float, float], ...] = ()
    """(rows, ms) as measured, rising, straight between; less than 0 where the curve says too much."""

    def ms(self, num_rows: int, num_drafts: int = 0) -> float:
        """Of a step."""
        return self._at(num_rows) + self.step_ms + self.row_ms * num_rows + self.draft_ms * num_drafts

    def _at(self, num_rows: int) -> float:
        """Where nothing was measured, what was at the nearest rows."""
        place = bisect_left(self.by_rows, float(num_rows), key=lambda known: known[0])
        if not 0 < place < len(self.by_rows):
            return self.by_rows[min(place, len(self.by_rows) - 1)][1] if self.by_rows else 0.0
        (low, low_ms), (high, high_ms) = self.by_rows[place - 1 : place + 1]
        return low_ms + (high_ms - low_ms) / (high - low) * (num_rows - low)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a load is simulated on."""

    curve: CostCurve
    """The truth about steps: never learned from, only read."""
    num_blocks: int
    """KV blocks."""
    block_size: int = 16
    host: Host = Host()
    prompts: CostCurve | None = None
    """Whole steps that feed prompts, the host's part in them: by all tokens of the step, and by how many tokens of
    prompts one of them looks at in the mean (see prompt_shape). None = the curve serves."""
    asking: Host | None = None
    """In place of `host` where drafts are asked for and none is verified: drafter and controller are in it; None = not
    measured, the drafter's own time counts."""
    verifying: Host | None = None
    """The same where drafts are verified."""
    propose_ms: float = 0.0
    """Time of asking a drafter for one row's draft, where that is all that is known of it."""
    draft_ratio: float = 0.0
    """A draft model's size over the model's; its forward passes take this share of the model's."""


def prompt_shape(num_tokens: int, num_pairs: float) -> StepShape:
    """What `Machine.prompts` is asked: tokens of the step, and query-key pairs of the prompts in it."""
    return StepShape(num_tokens, 1, round(num_pairs / num_tokens))


def num_pairs(num_new: int, num_computed: int) -> float:
    """Pairs of a query and a key before it, when so many tokens follow so many that are known."""
    return num_new * (num_computed + 0.5 * (num_new + 1))


class _SimRow:
    """A running request on the worker's side: its whole text, and the draft at hand."""

    __slots__ = ("drafts", "known", "num_right", "prompt", "tokens")

    def __init__(self, sim: SimRequest, tokens: list[int], known: int) -> None:
        self.tokens = tokens
        self.prompt = sim.source.num_prompt_tokens
        self.drafts = sim.drafts
        self.known = known
        self.num_right = 0


class CurveExecutor:
    """Runs plans against a cost curve; its clock is the time that the steps would have taken.

    Attributes:
        clock_s: simulated seconds so far.
    """

    def __init__(self, machine: Machine) -> None:
        self.clock_s = 0.0
        self._machine = machine
        near, far = (machine.curve.forward_ms(StepShape(1, 1, kv_tokens)) for kv_tokens in (1, 1001))
        self._kv_token_ms = (far - near) / 1000
        self._texts: dict[int, tuple[SimRequest, list[int]]] = {}
        self._rows: dict[int, _SimRow] = {}

    def expect(self, request_id: int, sim: SimRequest, tokens: list[int]) -> None:
        """A request is about to be added to the scheduler."""
        self._texts[request_id] = sim, tokens

    def forget(self, request_id: int) -> None:
        """The request has ended."""
        self._texts.pop(request_id, None)

    def run(self, plan: StepPlan) -> StepResult:
        """Advance the clock by what the step costs; hand out the tokens that the log has."""
        for request_id in plan.dropped:
            self._rows.pop(request_id, None)
        for new in plan.new_rows:
            self._rows[new.request_id] = _SimRow(*self._texts[new.request_id], len(new.token_ids))
        num_tokens = kv_tokens = prompt_kv = num_drafts = num_asked = rounds = 0
        pairs = 0.0
        results = []
        rows = self._rows
        for row_plan in plan.rows:
            num_tokens += row_plan.num_new
            num_drafts += row_plan.max_draft
            kv_tokens += row_plan.num_computed + row_plan.num_new
            if row_plan.num_new > 1 + row_plan.max_draft:
                pairs += num_pairs(row_plan.num_new, row_plan.num_computed)
                prompt_kv += row_plan.num_computed + row_plan.num_new
            result = _advance(rows[row_plan.request_id], row_plan)
            results.append(result)
            if row_plan.next_draft:
                num_asked += 1
                rounds = max(rounds, row_plan.next_draft)
        machine = self._machine
        num_rows = len(plan.rows)
        host_ms = machine.host.ms(num_rows)
        if pairs and machine.prompts is not None:
            others_ms = self._kv_token_ms * (kv_tokens - prompt_kv) + max(host_ms - machine.host.ms(0), 0.0)
            step_ms = machine.prompts.forward_ms(prompt_shape(num_tokens, pairs)) + others_ms
        else:
            step_ms = max(machine.curve.forward_ms(StepShape(num_tokens, num_rows, kv_tokens)) + host_ms, 0.0)
        draft_ms = _drafting_ms(machine, num_rows, num_asked, num_drafts)
        if machine.draft_ratio and num_asked:
            asked = StepShape(num_asked, num_asked, kv_tokens * num_asked // num_rows)
            draft_ms += machine.draft_ratio * machine.curve.forward_ms(asked) * rounds
        self.clock_s += (step_ms + draft_ms) / 1000
        return StepResult(results, forward_ms=max(step_ms - host_ms, 0.0), draft_ms=draft_ms)

    def close(self) -> None:
        """Forget all rows."""
        self._rows.clear()


def _drafting_ms(machine: Machine, num_rows: int, num_asked: int, num_drafts: int) -> float:
    """What drafts add to a step, beside a draft model's passes."""
    measured = machine.verifying if num_drafts else machine.asking
    if measured is None:
        return machine.propose_ms * num_asked
    if not (num_asked or num_drafts):
        return 0.0
    return max(measured.ms(num_rows, num_drafts) - machine.host.ms(num_rows), 0.0)


def _advance(row: _SimRow, plan: RowPlan) -> RowResult:
    """Drafts that the log agrees with, one token more, and the next draft."""
    if not plan.wants_token:
        return RowResult([])
    num_accepted = min(row.num_right, plan.max_draft)
    start = row.known
    row.known = start + num_accepted + 1
    row.num_right = 0
    survival: tuple[float, ...] = ()
    if plan.next_draft and row.drafts.num_right:
        at = (row.known - row.prompt - 1) % len(row.drafts.num_right)
        survival = row.drafts.survival[at][: plan.next_draft]
        row.num_right = min(row.drafts.num_right[at], len(survival))
    return RowResult(row.tokens[start : row.known], plan.max_draft, survival, "replay" if survival else "")
