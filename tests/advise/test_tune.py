"""Tuning and verifying with an engine whose truth is a formula."""

import random
from dataclasses import replace

import numpy as np
import pytest
import yaml

from threefold.advise.advise import Wishes, advise
from threefold.advise.evaluate import Evaluator
from threefold.advise.knee import KneePoint, steps_apart
from threefold.advise.knee_measured import Sweep
from threefold.advise.levers import FP8, KV8, Assumptions, base_variant, lever_variants
from threefold.advise.log import read_logs
from threefold.advise.portrait import draw_portrait
from threefold.advise.replay import Replay, replay
from threefold.advise.result import LoadResult
from threefold.advise.trace import TraceRequest, to_trace
from threefold.advise.tune import tune
from threefold.advise.verify import LIVE, Verifier, verify
from threefold.errors import ConfigError
from threefold.flags.targets import SERVED, targets_of


class FormulaMeasure:
    """Tokens a second rise with the running requests up to a knee; each drafter multiplies them."""

    def __init__(self, knee: int, **factors: float) -> None:
        self.knee = knee
        self.factors = factors
        self.runs: list[tuple[str, int, int]] = []

    def run(self, variant, asks, users):
        self.runs.append((variant.name, variant.settings.max_num_seqs, users))
        rate = 10.0 * min(users, variant.settings.max_num_seqs, self.knee)
        rate *= self.factors.get(variant.drafter or "", 1.0)
        if not variant.settings.has_prefix_cache:
            rate /= self.factors.get("prefix", 1.0)
        tpot = 1000 * users / rate
        return LoadResult(duration_s=1000 / rate, output_tokens=1000, num_done=len(asks), ttft_ms=[1.0], tpot_ms=[tpot])


@pytest.fixture
def case(write_log, encoder, facts):
    dice = random.Random(3)
    quotes = [" ".join(f"w{dice.randrange(9999)}" for _ in range(60)) for _ in range(30)]
    log = read_logs([write_log([{"prompt": quote, "output": quote} for quote in quotes])])
    trace = to_trace(log, encoder)
    replayed = replay(trace)
    wishes = Wishes(concurrency=4, samples=2, row_steps=2000)
    advice = advise(facts, trace, replayed, draw_portrait(log, trace, replayed), wishes, say=lambda line: None)
    evaluator = Evaluator(trace, replayed, draft_acceptance=0.5, row_steps=2000)
    levers = lever_variants(facts, replayed.propose_ms, Assumptions())
    return trace, evaluator, base_variant(facts), levers, advice


def tuned_by(measure, case, **how):
    trace, evaluator, base, levers, advice = case
    return tune(Verifier(measure, trace, evaluator), advice, base, levers, rounds=2, say=lambda line: None, **how)


@pytest.mark.parametrize("knee", [1, 4, 16, 64])
def test_the_measured_knee_wins(knee, case):
    tuned = tuned_by(FormulaMeasure(knee), case)
    assert tuned.settings.get("max-num-seqs", 64) == knee
    assert [point.max_num_seqs for point in tuned.points] == sorted(point.max_num_seqs for point in tuned.points)


def test_the_drafter_that_was_seen_to_pay_is_written_down(case):
    tuned = tuned_by(FormulaMeasure(16, ngram=1.5, suffix=1.2), case)
    assert tuned.settings["spec-method"] == "ngram"
    assert any("+50%" in line for line in tuned.reasons)


def test_predictions_that_do_not_hold_are_not_written_down(case):
    tuned = tuned_by(FormulaMeasure(16, ngram=0.9, suffix=1.0), case)
    assert "spec-method" not in tuned.settings
    assert any("no drafter was seen to pay" in line for line in tuned.reasons)


def test_serve_takes_what_is_written(case, tmp_path):
    from threefold.flags.configs import engine_config, parse_command
    from threefold.flags.table import ENGINE_FLAGS, SERVER_FLAGS

    tuned = tuned_by(FormulaMeasure(8, suffix=1.3), case)
    path = tmp_path / "threefold.yaml"
    path.write_text(tuned.yaml(["for a test"]))
    assert yaml.safe_load(path.read_text()) == tuned.settings
    config = engine_config(parse_command(["--config", str(path)], SERVER_FLAGS + ENGINE_FLAGS))
    assert config.scheduler.max_num_seqs == 8
    assert config.speculation.methods == ("suffix",)
    assert tuned.to_dict()["cells"]


def test_nothing_to_change_is_a_file_too(case):
    tuned = tuned_by(FormulaMeasure(64), case)
    assert tuned.settings == {}
    assert yaml.safe_load(tuned.yaml(["x"])) == {}


@pytest.mark.parametrize("knee", [1, 8, 64])
def test_a_sweep_says_how_far_off_the_knee_was(knee, case):
    measure = FormulaMeasure(knee)
    tuned = tuned_by(measure, case, is_exhaustive=True)
    assert tuned.sweep is not None
    assert [point.max_num_seqs for point in tuned.sweep.points] == [1, 2, 4, 8, 16, 32, 64]
    assert (tuned.sweep.knee, tuned.sweep.tuned) == (knee, knee)
    assert any(line == f"tune found {knee}: 0 steps apart" for line in tuned.reasons)
    sizes = [size for _, size, users in measure.runs if size == users]
    there_and_back = [1, 2, 4, 8, 16, 32, 64, 64, 32, 16, 8, 4, 2, 1]
    assert sizes[len(tuned.points) :][:14] == there_and_back, "nothing of the first search is used"
    assert tuned.to_dict()["sweep"]["knee"] == knee


def test_how_far_knees_are_apart():
    points = [KneePoint(size, 10.0 * min(size, 4), 1.0, 1.0, ()) for size in (1, 2, 4, 8)]
    lines = Sweep.of(points, points[3], None).lines()
    assert lines == [
        "the knee by a sweep over all 4 sizes: max_num_seqs 4",
        "tune found 8: 1 steps apart",
        "the advice found none: only one of the two meets the targets anywhere",
    ]
    broken = [replace(point, missed=("late",)) for point in points]
    assert Sweep.of(broken, None, points[0]).lines()[1] == "tune found none: the same"
    assert steps_apart(48, 96) == 1.0


def test_requests_that_come_again_are_other_ones(case):
    trace, evaluator, base, _, _ = case
    asked = []

    class Listens(FormulaMeasure):
        def run(self, variant, asks, users):
            asked.extend(tuple(ask.token_ids) for ask in asks)
            return super().run(variant, asks, users)

    Verifier(Listens(4), trace, evaluator).measured(base, 32)
    assert len(asked) == 96 > len(trace) == 30
    assert len(set(asked)) == 96


def test_verify_measures_there_and_back(case):
    trace, evaluator, base, levers, _ = case
    measure = FormulaMeasure(2, ngram=1.5, prefix=1.1)
    live = [lever for lever in levers if lever.name in LIVE]
    cells = verify([Verifier(measure, trace, evaluator)], base, live, [1, 4], rounds=3, say=lambda line: None)
    assert [(cell.lever, cell.users) for cell in cells] == [
        *((lever, 1) for lever in LIVE), ("max_num_seqs 2 → 4", 4), *((lever, 4) for lever in LIVE),
    ]  # fmt: skip
    measured = {cell.lever: cell.measured for cell in cells}
    assert measured["ngram"] == pytest.approx(0.5)
    assert measured["prefix caching"] == pytest.approx(0.1)
    assert measured["suffix"] == pytest.approx(0.0)
    assert measured["max_num_seqs 2 → 4"] == pytest.approx(0.0)
    assert cells[1].predicted > 0.5, "copies are predicted to pay"
    assert cells[3].predicted > 0.5, "the simulator knows nothing of the knee at two"
    first = [name for name, _, users in measure.runs if users == 1]
    turn = ["prefix caching", "base", "ngram", "suffix"]
    assert first == ["prefix caching", "ngram", "suffix", *turn, *reversed(turn), *turn]


def test_levers_with_other_weights_come_last_and_the_base_is_not_measured_again(case):
    trace, evaluator, base, levers, _ = case
    measure = FormulaMeasure(16)
    loads = [Verifier(measure, trace, evaluator, name) for name in ("one", "two")]
    chosen = [lever for lever in levers if lever.name in (FP8, "prefix caching", KV8)]
    cells = verify(loads, base, chosen, [1], rounds=2, say=lambda line: None)
    assert [(cell.load, cell.lever) for cell in cells] == [
        ("one", "prefix caching"), ("two", "prefix caching"), ("one", FP8), ("two", FP8), ("one", KV8), ("two", KV8),
    ]  # fmt: skip
    names = [name for name, _, _ in measure.runs]
    assert names.index(KV8) > max(at for at, name in enumerate(names) if name == FP8), "each is loaded once"
    assert names.count("base") == 4
    assert cells[2].predicted > 0.3
    assert cells[2].measured == pytest.approx(0.0)


def test_more_users_than_requests_are_passed_over(case):
    trace, evaluator, base, levers, _ = case
    said = []
    assert verify([Verifier(FormulaMeasure(4), trace, evaluator)], base, levers, [31], rounds=1, say=said.append) == []
    assert said == ["the log: 30 requests are too few for 31 users"]


def test_a_load_of_which_nothing_can_be_answered(case):
    trace, evaluator, base, levers, _ = case

    class Refuses(FormulaMeasure):
        def run(self, variant, asks, users):
            return LoadResult(num_too_long=len(asks))

    with pytest.raises(ConfigError, match="no request could be answered"):
        verify([Verifier(Refuses(4), trace, evaluator)], base, levers, [1], rounds=1, say=lambda line: None)


def test_prompts_that_are_known_by_names_only_share_what_the_names_share(case):
    base = case[2]
    names = np.array([7, 8, 9], dtype=np.uint64)
    trace = [TraceRequest(50, 4, names), TraceRequest(40, 4, names[:2]), TraceRequest(20, 4, names[2:])]
    asked = []

    class Listens(FormulaMeasure):
        def run(self, variant, asks, users):
            asked.extend(ask.token_ids for ask in asks)
            return super().run(variant, asks, users)

    replayed = Replay({}, {}, 0, 0)
    verifier = Verifier(Listens(4), trace, Evaluator(trace, replayed, draft_acceptance=0.5))
    assert not verifier.has_text
    verifier.measured(base, 1)
    by_length = {len(tokens): tokens for tokens in asked}
    assert set(by_length) == {50, 40, 20}
    assert by_length[50][:32] == by_length[40][:32]
    assert by_length[50][32:40] != by_length[40][32:]
    assert by_length[20][:16] == by_length[50][32:48]
    assert max(max(tokens) for tokens in asked) < 256


def test_ctrl_c_keeps_cells(case):
    trace, evaluator, base, levers, _ = case

    class Breaks(FormulaMeasure):
        def run(self, variant, asks, users):
            if len(self.runs) > 10:
                raise KeyboardInterrupt
            return super().run(variant, asks, users)

    said = []
    cells = verify([Verifier(Breaks(8), trace, evaluator)], base, levers, [1, 4], rounds=1, say=said.append)
    assert [cell.users for cell in cells] == [1, 1, 1]
    assert "kept" in said[-1]


@pytest.mark.parametrize(("limit", "held"), [(1e6, "tpot:1e+06"), (1e-3, None)])
def test_targets_are_written_down_for_the_server_where_they_can_be_met(limit, held, case):
    trace, evaluator, base, levers, advice = case
    asked = replace(advice, targets={"tpot": limit, "e2e": 1e8})
    verifier = Verifier(FormulaMeasure(4), trace, evaluator)
    tuned = tune(verifier, asked, base, levers, rounds=2, say=lambda line: None)
    assert tuned.settings.get("slo") == held
    if held:
        parsed = yaml.safe_load(tuned.yaml(["for a test"]))
        assert dict(targets_of(SERVED)(parsed["slo"])) == {"tpot": limit}


@pytest.mark.parametrize(("scatter", "rounds", "wanted"), [(0.0, 2, 2), (0.2, 2, 4), (0.2, 1, 1)])
def test_where_runs_scatter_there_are_more_of_them(scatter, rounds, wanted, case):
    trace, evaluator, base, levers, _ = case

    class Scatters(FormulaMeasure):
        def run(self, variant, asks, users):
            result = super().run(variant, asks, users)
            result.duration_s *= 1 + scatter * (len(self.runs) % 2)
            return result

    measure = Scatters(4)
    ngram = [one for one in levers if one.name == "ngram"]
    (cell,) = [
        cell
        for cell in verify(
            [Verifier(measure, trace, evaluator)], base, ngram, [1], rounds=rounds, say=lambda line: None
        )
        if cell.lever == "ngram"
    ]
    warm = 2
    assert len(measure.runs) == warm + 2 * wanted
    assert cell.spread is None if rounds == 1 else (cell.spread > 0.02) == (scatter > 0)
