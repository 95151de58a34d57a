"""What kinds of steps a run was made of, and what they took: where a lever's gain or loss comes from.

    plain     each row is fed one token, and nobody is asked for drafts
    prompts   prompts are fed, too
    asks      drafts are asked for behind it
    verifies  drafts are verified in it

A step may be several of these but plain. Its time is that since the step before was over, so those of a run add up.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from threefold.bench.passing import PassingExecutor
from threefold.step import Executor, StepPlan, StepResult


@dataclass(slots=True)
class KindFigures:
    """Of the steps of one kind."""

    num_steps: int = 0
    ms: float = 0.0
    """In all."""
    worst_ms: float = 0.0
    """The longest."""
    forward_ms: float = 0.0
    """In all, of the forward passes."""
    idle_ms: float = 0.0
    """In all, that the device rested before them; 0 where that is not known."""

    def add(self, ms: float, result: StepResult) -> None:
        """One step more."""
        self.num_steps += 1
        self.ms += ms
        self.worst_ms = max(self.worst_ms, ms)
        self.forward_ms += result.forward_ms
        self.idle_ms += result.idle_ms


class KindsOfSteps(PassingExecutor):
    """Runs plans on another executor and adds up what went by.

    Attributes:
        by_kind: the figures; kinds that are several are joined by a plus sign.
    """

    def __init__(self, executor: Executor, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(executor)
        self.by_kind: dict[str, KindFigures] = {}
        self._clock = clock
        self._launched: deque[StepPlan] = deque()
        self._ended_s: float | None = None

    def launch(self, plan: StepPlan) -> None:
        """Begin a step."""
        if self._ended_s is None:
            self._ended_s = self._clock()
        super().launch(plan)
        self._launched.append(plan)

    def collect(self) -> StepResult:
        """The oldest step's result, noted."""
        result = super().collect()
        before_s, self._ended_s = self._ended_s, self._clock()
        assert before_s is not None, "what is collected was launched"
        figures = self.by_kind.setdefault(kind_of(self._launched.popleft()), KindFigures())
        figures.add(1e3 * (self._ended_s - before_s), result)
        return result

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return {kind: asdict(figures) for kind, figures in sorted(self.by_kind.items())}


def kind_of(plan: StepPlan) -> str:
    """What a step does."""
    kinds = {"prompts": plan.feeds_prompts, "asks": plan.num_asked > 0, "verifies": plan.num_drafts > 0}
    return "+".join(kind for kind, holds in kinds.items() if holds) or "plain"
