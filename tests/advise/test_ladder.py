from threefold.advise.drive import Ask
from threefold.advise.ladder import QUANTISATION, RUNGS, Load, climb, conclusions
from threefold.advise.result import LoadResult
from threefold.advise.tables import ladder_lines

RATES = dict(zip(RUNGS, (10.0, 20.0, 40.0, 50.0, 50.0), strict=True))


class FakeRungs:
    """Takes as long as its rate says, on a clock of its own."""

    def __init__(self, *, breaks_at: int = 10**9) -> None:
        self.now_s = 0.0
        self.runs: list[tuple[str, int, int]] = []
        self.breaks_at = breaks_at

    def run(self, rung, asks, users):
        self.runs.append((rung, len(asks), users))
        if len(self.runs) > self.breaks_at:
            raise KeyboardInterrupt
        tokens = sum(ask.max_tokens for ask in asks)
        took_s = tokens / (RATES[rung] if users > 1 else 10.0)
        self.now_s += took_s
        return LoadResult(duration_s=took_s, num_done=len(asks), output_tokens=tokens, ttft_ms=[5.0], tpot_ms=[2.0])


def climbed(rungs, budget_s=10_000.0, users=(1, 8)):
    loads = [Load("x", [Ask([1], 10) for _ in range(64)])]
    return climb(
        rungs, loads, users, budget_s=budget_s, why_no_quantisation="no copy", say=lambda line: None,
        clock=lambda: rungs.now_s,
    )  # fmt: skip


def test_every_rung_at_every_load():
    result = climbed(FakeRungs())
    assert [ladder.users for ladder in result.ladders] == [1, 8]
    top = result.ladders[1].steps
    assert [step.rung for step in top] == list(RUNGS)
    assert [step.gain for step in top] == [1.0, 2.0, 2.0, 1.25, 1.0]
    assert top[-1].total_gain == 5.0
    assert result.skipped == {QUANTISATION: "no copy"}
    assert not result.is_cut
    assert ladder_lines(result)


def test_conclusions_tell_triples_from_paper():
    said = conclusions(climbed(FakeRungs()).ladders)
    assert "paper number" in said[0]
    assert "triples: 5.0 times" in said[1]


def test_the_budget_holds_and_all_rungs_answer_the_same():
    rungs = FakeRungs()
    result = climbed(rungs, budget_s=60.0)
    assert rungs.now_s < 90.0
    assert result.ladders
    for ladder in result.ladders:
        sizes = {num for rung, num, users in rungs.runs if users == ladder.users and num == ladder.num_requests}
        assert sizes == {ladder.num_requests}


def test_no_time_left_is_said():
    result = climbed(FakeRungs(), budget_s=0.5)
    assert result.is_cut
    assert any("cut short" in line for line in ladder_lines(result))


def test_ctrl_c_keeps_what_was_measured():
    result = climbed(FakeRungs(breaks_at=14))
    assert result.is_cut
    assert len(result.ladders) == 1
