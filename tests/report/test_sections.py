"""What each section says, beyond that it stands."""

import pytest

from threefold.report.advice import advice_section, tuned_section
from threefold.report.comparison import comparison_section
from threefold.report.envelope import envelope_section
from threefold.report.ladder import ladder_section
from threefold.report.parts import parts_of
from threefold.report.portrait import portrait_section
from threefold.report.step_load import step_load_section
from threefold.report.steps import steps_section
from threefold.report.verification import verification_section

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


def test_loads_are_told_apart(advise_result):
    cells = [one | {"load": load} for load in ("prose", "code") for one in advise_result["verification"]]
    said = body(verification_section, {**advise_result, "verification": cells}, "verification")
    assert said.count("<figure>") == 3, "one of each load, and one of what tune measured"
    assert "<figcaption>Change of tokens per second: code</figcaption>" in said
    assert "<td class='left'>prose</td><td class='left'>ngram</td><td class='right'>2</td>" in said


def test_nothing_was_open(advise_result):
    said = body(verification_section, {**advise_result, "verification": []}, "verification")
    assert "Nothing was open" in said


def test_a_sweep_is_drawn_in_place_of_the_search(advise_result):
    points = [point | {"max_num_seqs": 4 * point["max_num_seqs"]} for point in advise_result["tuned"]["points"]]
    tuned = advise_result["tuned"] | {"sweep": {"points": points}}
    said = body(tuned_section, {**advise_result, "tuned": tuned}, "tuned")
    assert "max_num_seqs: 8" in said
    assert "max_num_seqs: 8" not in body(tuned_section, advise_result, "tuned")


def test_what_tune_settled(advise_result):
    said = body(tuned_section, advise_result, "tuned")
    assert "because it was measured" in said
    assert "<pre>max-num-seqs: 1\n</pre>" in said


def test_a_load_that_changes_says_how_soon_drafts_follow(make_step_load):
    said = body(step_load_section, make_step_load(), "step-load")
    assert "From 2 to 8 users: drafts verified settle after 10 steps, drafts asked for settle after 10 steps." in said
    assert "40 % of 100 drafts that were verified were right." in said
    assert "1 request failed." in said
    assert "<title>verified: 4, step: 0</title>" in said  # three steps a point
    assert ">2 → 8<" in said, "the change is marked"
    assert "Time of a step, mean over 3 steps" in said


def test_a_load_that_never_settles_says_so(make_step_load):
    result = make_step_load()
    result["changes"][0]["asked"]["settled_after_steps"] = None
    assert "drafts asked for settle never" in body(step_load_section, result, "step-load")


def test_steps_of_one_model_are_one_table(make_steps):
    parts = [part for rows in (16, 4) for part in parts_of(make_steps(rows), f"{rows}.json")]
    said = steps_section(parts, include_text=False).body
    assert said.count("<table>") == 1
    assert said.index("<td class='right'>4</td>") < said.index("<td class='right'>16</td>")
    assert "A step, by requests at once" in said
    assert "<title>attention: 1.5 ms</title>" in said
    assert "<title>the whole step: 10, requests at once: 16</title>" in said


def test_steps_that_were_measured_before_drafts_were_timed(make_steps):
    old = {key: value for key, value in make_steps().items() if "draft" not in key}
    said = body(steps_section, old, "steps")
    assert "draft ms" not in said
    assert "<th class='right'>idle ms</th>" in said


def test_steps_without_a_card_have_no_kinds_of_kernels(make_steps):
    said = body(steps_section, make_steps() | {"parts_ms": {}}, "steps")
    assert "by kind" not in said
    assert "by requests at once" not in said
