"""An executor that passes plans on to another, for those that look at what goes by. Knows nothing of what they see."""

from __future__ import annotations

from threefold.step import Executor, StepPlan, StepResult


class PassingExecutor:
    """Implements step.Executor over another one.

    Args:
        executor: runs the plans.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def launch(self, plan: StepPlan) -> None:
        """Begin a step."""
        self._executor.launch(plan)

    def collect(self) -> StepResult:
        """The oldest step's result."""
        return self._executor.collect()

    def run(self, plan: StepPlan) -> StepResult:
        """Launch and collect."""
        self.launch(plan)
        return self.collect()

    def close(self) -> None:
        """Close the other one."""
        self._executor.close()
