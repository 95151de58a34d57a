import numpy as np

from threefold.cost import CostCurve, StepShape
from threefold.draft.admit import admit
from threefold.draft.probe import PROBE_SHARE, ProbeBudget, Prober

LINEAR = CostCurve([(1, 10.0), (101, 110.0)])
SHAPE = StepShape(4, 4, 0)


def losses(prober: Prober, survival: np.ndarray, num_steps: int) -> tuple[float, set[tuple[int, ...]], int]:
    """Milliseconds lost against the best choice, the choices made, and the best number."""
    admission = admit(survival, LINEAR, SHAPE, num_committing=4)
    lengths = np.count_nonzero(survival, axis=1)
    lost, seen = 0.0, set()
    for _ in range(num_steps):
        counts = prober.counts(admission, 4, LINEAR, SHAPE, is_due=False)
        assert np.all(counts <= lengths)
        seen.add(tuple(counts.tolist()))
        lost += float(admission.loss_ms[int(counts.sum())])
        prober.earn(20.0)
    return lost, seen, admission.best


def test_what_seems_not_to_pay_is_tried_at_a_bounded_price() -> None:
    lost, seen, best = losses(Prober(), np.full((4, 2), 0.05) ** [1, 2], 4000)
    assert best == 0
    assert len(seen) > 3
    assert {row for counts in seen for row, count in enumerate(counts) if count} == {0, 1, 2, 3}
    assert lost < 2 * PROBE_SHARE * 4000 * 20.0 + 100.0


def test_what_always_pays_is_left_out_now_and_then() -> None:
    lost, seen, best = losses(Prober(), np.full((4, 8), 0.99) ** np.arange(1, 9), 4000)
    assert best == 32
    assert (0, 0, 0, 0) in seen
    assert lost < 2 * PROBE_SHARE * 4000 * 20.0 + 200.0


def test_without_time_there_is_no_budget() -> None:
    budget = ProbeBudget()
    budget.earn(0.0)
    assert not budget.spend(1e-6)
    assert budget.spend(0.0)
