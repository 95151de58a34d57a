import pytest

from threefold.bench.alone_options import ControlOptions
from threefold.bench.control import bench_control, control_lines


@pytest.mark.parametrize("drafts", [0, 3])
def test_every_step_is_full(drafts: int) -> None:
    result = bench_control(ControlOptions(rows=8, steps=20, repeats=2, drafts=drafts))
    assert result["total_us_per_row"] > 0
    assert len(result["plan_us_per_row_repeats"]) == len(result["commit_us_per_row_repeats"]) == 2
    assert "Rows:                                    8" in control_lines(result)
