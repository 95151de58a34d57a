from __future__ import annotations

from collections.abc import Sequence

import pytest

from threefold.bench.step_kinds import KindsOfSteps, kind_of
from threefold.step import RowPlan, StepPlan, StepResult


def plan_of(*rows: Sequence[int]) -> StepPlan:
    """(num_new, max_draft, next_draft) of each row."""
    return StepPlan(
        [RowPlan(i, 9, num_new, drafts, (), True, asked) for i, (num_new, drafts, asked) in enumerate(rows)]
    )


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([(1, 0, 0), (1, 0, 0)], "plain"),
        ([(1, 0, 0), (7, 0, 0)], "prompts"),
        ([(1, 0, 4), (1, 0, 0)], "asks"),
        ([(4, 3, 0), (1, 0, 0)], "verifies"),
        ([(4, 3, 2), (7, 0, 0)], "prompts+asks+verifies"),
    ],
)
def test_a_kind_says_all_that_a_step_does(rows: list[tuple[int, int, int]], kind: str) -> None:
    assert kind_of(plan_of(*rows)) == kind


class Ticking:
    """Each step takes the device 2 ms, and half a millisecond passes before it begins."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.is_closed = False

    def launch(self, plan: StepPlan) -> None:
        pass

    def collect(self) -> StepResult:
        self.now_s += 0.0025
        return StepResult([], forward_ms=2.0, idle_ms=0.5)

    def close(self) -> None:
        self.is_closed = True


def test_times_of_all_kinds_add_up_to_the_run() -> None:
    device = Ticking()
    kinds = KindsOfSteps(device, lambda: device.now_s)
    plain, asking = plan_of((1, 0, 0)), plan_of((1, 0, 4))
    kinds.launch(plain)
    kinds.launch(asking)
    kinds.collect()
    device.now_s += 0.01  # the host held it up
    kinds.collect()
    kinds.run(plain)
    kinds.close()

    figures = kinds.plain()
    assert list(figures) == ["asks", "plain"]
    assert figures["plain"] == pytest.approx(
        {"num_steps": 2, "ms": 5.0, "worst_ms": 2.5, "forward_ms": 4.0, "idle_ms": 1.0}
    )
    assert figures["asks"]["worst_ms"] == pytest.approx(12.5)
    assert sum(kind["ms"] for kind in figures.values()) == pytest.approx(1e3 * device.now_s)
    assert device.is_closed
