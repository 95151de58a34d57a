"""Loads whose verdicts are known beforehand."""

import random
from dataclasses import replace

import pytest

from threefold.advise.advise import Advice, Wishes, advise
from threefold.advise.levers import Assumptions
from threefold.advise.log import read_logs
from threefold.advise.portrait import draw_portrait
from threefold.advise.replay import replay
from threefold.advise.tables import advice_lines
from threefold.advise.trace import to_trace
from threefold.advise.verdict import ON, SAME, UNKNOWN
from threefold.cost import CostCurve


def words(dice, num):
    return " ".join(f"w{dice.randrange(50_000)}" for _ in range(num))


def judged(path, encoder, facts, **wishes) -> Advice:
    log = read_logs([path])
    trace = to_trace(log, encoder)
    replayed = replay(trace)
    told = []
    asked = Wishes(**{"concurrency": 4, "samples": 3, "row_steps": 3000, **wishes})
    advice = advise(facts, trace, replayed, draw_portrait(log, trace, replayed), asked, say=told.append)
    assert told
    assert advice_lines(advice)
    return advice


def verdict(advice, lever):
    return next(one for one in advice.verdicts if one.lever == lever)


@pytest.fixture
def new_text(write_log):
    dice = random.Random(1)
    return write_log([{"prompt": words(dice, 60), "output": words(dice, 60)} for _ in range(24)], "new.jsonl")


@pytest.fixture
def copied_text(write_log):
    dice = random.Random(2)
    quotes = [words(dice, 80) for _ in range(24)]
    return write_log([{"prompt": quote, "output": quote} for quote in quotes], "copied.jsonl")


def test_copies_want_drafts(copied_text, encoder, facts):
    advice = judged(copied_text, encoder, facts)
    ngram = verdict(advice, "ngram")
    assert ngram.verdict == ON
    assert ngram.change > 1.0
    assert ngram.low <= ngram.change <= ngram.high
    assert ngram.tpot_change < -0.4
    assert any("--spec-method" in line for line in advice.summary)
    assert len(ngram.by_load) >= 3


def test_nothing_pays_for_new_text(new_text, encoder, facts):
    advice = judged(new_text, encoder, replace(facts, is_gpu=False, max_num_seqs=4))
    for lever in ("ngram", "suffix", "prefix caching"):
        assert verdict(advice, lever).verdict == SAME, lever
    assert any("do nothing" in line for line in advice.summary)


def test_shared_prefixes_want_the_cache(write_log, encoder, facts):
    dice = random.Random(3)
    rules = " ".join(f"rule{index}" for index in range(800))
    path = write_log([{"prompt": f"{rules} {words(dice, 40)}", "output": words(dice, 8)} for _ in range(24)])
    advice = judged(path, encoder, facts, concurrency=16)
    prefix = verdict(advice, "prefix caching")
    assert prefix.verdict == ON
    assert prefix.change > 0.5
    assert "% of prompt tokens are found" in prefix.reason


def test_what_the_log_does_not_hold_cannot_be_said(write_log, encoder, facts):
    path = write_log([{"threefold": 1, "prompt_tokens": 50, "output_tokens": 20}] * 8)
    advice = judged(path, encoder, facts)
    for lever in ("prefix caching", "ngram", "suffix"):
        assert verdict(advice, lever).verdict == UNKNOWN
    assert verdict(advice, "fp8 weights").is_estimate
    on_a_cpu = judged(path, encoder, replace(facts, is_gpu=False))
    assert verdict(on_a_cpu, "fp8 weights").verdict == UNKNOWN
    assert not verdict(on_a_cpu, "fp8 weights").quality, "what cannot be said needs no measurement of quality"


def test_targets_that_cannot_be_met(new_text, encoder, facts):
    advice = judged(new_text, encoder, facts, targets={"tpot": 1.0})
    assert advice.missed
    assert verdict(advice, "max_num_seqs").verdict == "targets cannot be met"
    assert "cannot be met" in advice.summary[0]


def test_users_come_from_the_logs_own_rate(write_log, encoder, facts):
    dice = random.Random(4)
    entries = [{"prompt": words(dice, 50), "output": words(dice, 50), "arrival_s": 0.05 * at} for at in range(60)]
    advice = judged(write_log(entries), encoder, facts, concurrency=None)
    # 50 steps of a little over 4 ms, twenty requests a second: about four in flight
    assert 3 <= advice.concurrency <= 6
    assert "own rate" in advice.concurrency_reason


def test_a_log_without_times_says_so(new_text, encoder, facts):
    advice = judged(new_text, encoder, facts, concurrency=None)
    assert advice.concurrency == 16
    assert "no times" in advice.concurrency_reason


def test_a_flood_is_named(write_log, encoder, facts):
    dice = random.Random(5)
    entries = [{"prompt": words(dice, 200), "output": words(dice, 20), "arrival_s": 0.0001 * at} for at in range(400)]
    advice = judged(write_log(entries), encoder, replace(facts, max_num_seqs=8), concurrency=None)
    assert advice.concurrency == 8
    assert "faster than this machine" in advice.concurrency_reason


def test_a_lever_that_breaks_a_target_is_off(copied_text, encoder, facts):
    slow_rounds = Assumptions(draft_ratio=0.3, draft_acceptance=0.97)
    free = judged(copied_text, encoder, facts, assumed=slow_rounds)
    assert verdict(free, "draft model").verdict == ON
    limit = free.base["p90_ttft_ms"] * 1.02
    advice = judged(copied_text, encoder, facts, assumed=slow_rounds, targets={"ttft": limit})
    draft = verdict(advice, "draft model")
    assert draft.verdict == "off"
    assert "breaks a target" in draft.reason


def test_a_measured_form_is_advised_with_its_quality(new_text, encoder, facts):
    fp8 = replace(facts, curve=CostCurve([(1, 2.0), (64, 2.2), (2048, 30.0)]).to_dict())
    advice = judged(new_text, encoder, facts, forms={"fp8 weights": fp8}, quality={"fp8 weights": "as good"})
    one = verdict(advice, "fp8 weights")
    assert (one.verdict, one.is_estimate) == (ON, False)
    assert one.reason == "from steps of the model in this form, measured"
    assert any(line.startswith("--quantization fp8: +") and "as good" in line for line in advice.summary)
