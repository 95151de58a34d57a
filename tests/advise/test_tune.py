"""Tuning and verifying with an engine whose truth is a formula."""

import random
from dataclasses import replace

import pytest
import yaml

from threefold.advise.advise import Wishes, advise
from threefold.advise.evaluate import Evaluator
from threefold.advise.levers import Assumptions, base_variant, lever_variants
from threefold.advise.log import read_logs
from threefold.advise.portrait import draw_portrait
from threefold.advise.replay import replay
from threefold.advise.result import LoadResult
from threefold.advise.trace import to_trace
from threefold.advise.tune import tune
from threefold.advise.verify import LIVE, Verifier, verify
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


def tuned_by(measure, case):
    trace, evaluator, base, levers, advice = case
    return tune(Verifier(measure, trace, evaluator), advice, base, levers, rounds=2, say=lambda line: None)


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


def test_verify_measures_both_ways_in_turn(case):
    trace, evaluator, base, levers, _ = case
    measure = FormulaMeasure(16, ngram=1.5, prefix=1.1)
    cells = verify(Verifier(measure, trace, evaluator), base, levers, [1, 4], rounds=3, say=lambda line: None)
    assert [(cell.lever, cell.users) for cell in cells] == [(lever, users) for users in (1, 4) for lever in LIVE]
    measured = {cell.lever: cell.measured for cell in cells}
    assert measured["ngram"] == pytest.approx(0.5)
    assert measured["prefix caching"] == pytest.approx(0.1)
    assert measured["suffix"] == pytest.approx(0.0)
    assert cells[1].predicted > 0.5, "copies are predicted to pay"
    first = [name for name, _, users in measure.runs if users == 1][:7]
    assert first == ["prefix caching", "base", "prefix caching", "prefix caching", "base", "base", "prefix caching"]


def test_ctrl_c_keeps_cells(case):
    trace, evaluator, base, levers, _ = case

    class Breaks(FormulaMeasure):
        def run(self, variant, asks, users):
            if len(self.runs) > 8:
                raise KeyboardInterrupt
            return super().run(variant, asks, users)

    said = []
    cells = verify(Verifier(Breaks(8), trace, evaluator), base, levers, [1, 4], rounds=3, say=said.append)
    assert len(cells) == 1
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
