"""What each section says, beyond that it stands."""

import pytest

from threefold.report.advice import advice_section, tuned_section, verification_section
from threefold.report.comparison import comparison_section
from threefold.report.envelope import envelope_section
from threefold.report.ladder import ladder_section
from threefold.report.parts import parts_of
from threefold.report.portrait import portrait_section

pytest.importorskip("matplotlib")


def body(render, result, kind: str) -> str:
    return render([part for part in parts_of(result, "x.json") if part.kind == kind], include_text=False).body


def test_the_envelope_says_what_holds(make_envelope):
    said = body(envelope_section, make_envelope(), "envelope")
    assert "holds in 2 of 2 cells, fails in 0" in said
    assert said.count("<b class='badge good'>holds</b>") == 4
    assert "<title>adaptive: 1.41 (1.41 to 1.41), users at once: 1</title>" in said


def test_the_ladder_says_what_each_step_brings_and_costs(make_ladder):
    said = body(ladder_section, make_ladder(), "ladder")
    assert "triples: 5.0 times one at a time" in said
    assert "<td class='right'>2.00 ×</td><td class='right'>4.00 ×</td><td class='right'>25</td>" in said
    assert "+ quantisation: passed over: no copy" in said
    assert "<title>static batches: 20 (2.00 ×)</title>" in said


def test_a_comparison_says_whether_there_is_a_difference(make_comparison):
    assert "b is 49." in body(comparison_section, make_comparison(), "comparison")


def test_the_portrait(portrait_result, nasty):
    said = body(portrait_section, portrait_result, "portrait")
    for title in ("Prompts, tokens", "Answers, tokens", "Shared beginnings", "How far ahead", "Bursts"):
        assert f"<figcaption>{title}" in said
    assert "<dt>requests</dt><dd>12</dd>" in said
    assert nasty not in said


def test_a_portrait_of_a_log_that_says_little(portrait_result):
    drafts = {name: {"num_requests": 0} for name in portrait_result["predictability"]}
    little = {
        **portrait_result, "arrivals": None, "prefix": {"is_known": False}, "predictability": drafts, "num_faults": 1,
        "kinds": {}, "replay": {"num_sampled": 0}, "num_assumed_lengths": 2,
    }  # fmt: skip
    said = body(portrait_section, little, "portrait")
    assert "nothing is said of arrivals" in said
    assert "2 answers not in the log" in said
    assert "1 broken line of" in said


def test_advice_gives_its_reasons(advise_result):
    said = body(advice_section, advise_result, "advice")
    assert "made-up on a fine card, judged at 2 users (as asked)" in said
    assert "Targets for nine requests in ten: ttft 500 ms" in said
    for verdict in advise_result["advice"]["verdicts"]:
        assert f">{verdict['lever']}</td>" in said
    assert "commit 0123456789 with changes · a fine card, A fine CPU, 8 cores · 2026-11-30" in said
    assert "drafts are right; stops to pay at about 9 users; costs nothing" in said


def test_predictions_are_shown_beside_what_was_measured(advise_result):
    said = body(verification_section, advise_result, "verification")
    assert "sign right in 1 of 2 cells" in said
    assert "<title>ngram, 2 users, measured: +50.0 % tokens per second</title>" in said
    assert "<b class='badge bad'>wrong</b>" in said


def test_nothing_was_open(advise_result):
    said = body(verification_section, {**advise_result, "verification": []}, "verification")
    assert "Nothing was open" in said


def test_what_tune_settled(advise_result):
    said = body(tuned_section, advise_result, "tuned")
    assert "because it was measured" in said
    assert "<pre>max-num-seqs: 1\n</pre>" in said
