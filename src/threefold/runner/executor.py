"""The worker in this process, as the control half knows it."""

from __future__ import annotations

from threefold.runner.worker import Worker
from threefold.step import StepPlan, StepResult


class LocalExecutor:
    """Implements step.Executor over one worker.

    Args:
        worker: runs the plans.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def launch(self, plan: StepPlan) -> None:
        """Start a step; on a CPU it is done when this returns."""
        self._worker.launch(plan)

    def collect(self) -> StepResult:
        """The oldest step's result."""
        return self._worker.collect()

    def run(self, plan: StepPlan) -> StepResult:
        """Run one step."""
        return self._worker.run(plan)

    def close(self) -> None:
        """Nothing outlives the worker's tensors."""
