from threefold.advise.knee import KneePoint, find_knee, judge_knee


def points(*rates: float, broken_from: int = 99) -> list[KneePoint]:
    return [
        KneePoint(2**index, rate, 1.0, 2.0 + index, ("tpot p90 9 ms > 5 ms",) if index >= broken_from else ())
        for index, rate in enumerate(rates)
    ]


def test_where_throughput_stops_to_rise():
    knee, why = find_knee(points(10, 19, 36, 37, 37))
    assert knee is not None
    assert knee.max_num_seqs == 4
    assert why == "8 would bring +3% tokens/s"


def test_a_dip_on_the_way_is_no_knee():
    knee, _ = find_knee(points(10, 19, 18, 36, 70))
    assert knee is not None
    assert knee.max_num_seqs == 16


def test_targets_end_it_earlier():
    knee, why = find_knee(points(10, 20, 40, 80, broken_from=2))
    assert knee is not None
    assert knee.max_num_seqs == 2
    assert why == "at 4 tpot p90 9 ms > 5 ms"


def test_targets_that_cannot_be_met():
    assert find_knee(points(10, 20, broken_from=0))[0] is None
    said = judge_knee(points(10, 20, broken_from=0), 2)
    assert said.verdict == "targets cannot be met"
    assert "even at 1" in said.reason


def test_verdicts():
    right = judge_knee(points(10, 20, 40), 4)
    assert right.verdict == "no difference"
    assert "memory was planned for" in right.reason
    smaller = judge_knee(points(10, 20, 20.5), 4)
    assert (smaller.verdict, smaller.setting) == ("set to 2", "--max-num-seqs 2")
    assert smaller.tpot_change is not None
    assert smaller.tpot_change < 0
