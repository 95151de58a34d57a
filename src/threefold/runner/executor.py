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

    def run(self, plan: StepPlan) -> StepResult:
        """Run one step."""
        return self._worker.run(plan)

    def close(self) -> None:
        """Nothing outlives the worker's tensors."""
