import pytest

from threefold.report.parts import parts_of
from threefold.report.serve import serve_section

pytest.importorskip("matplotlib")


def section(*runs, include_text: bool = False) -> str:
    parts = [part for run in runs for part in parts_of(run, "x.json")]
    return serve_section(parts, include_text=include_text).body


def test_runs_of_one_load_make_one_curve_with_its_knee(make_serve):
    body = section(*(make_serve(users) for users in (16, 1, 4, 2)))
    assert "The knee is at 4 users at once: 16 would bring +0% tokens/s." in body
    for title in ("Time to the first token", "Time per further token", "What the server writes", "by position"):
        assert f"<figcaption>{title}" in body or title in body
    assert ">knee<" in body
    assert body.index("<td class='right'>1</td>") < body.index("<td class='right'>16</td>")


def test_points_tell_their_value_under_the_pointer(make_serve):
    body = section(make_serve(1), make_serve(2))
    assert "<title>median (half of the requests were faster): 10.0, users at once: 1</title>" in body


def test_loads_that_differ_are_curves_of_their_own(make_serve):
    body = section(make_serve(1, label="a"), make_serve(2, label="b"), make_serve(4, rate=2.0))
    assert body.count("<h3>") == 3
    assert "knee" not in body
    assert "requests per second" in body


def test_limits_that_break_are_said(make_serve):
    kept, broken = {"ttft": 1.0}, {"ttft": 0.5}
    said = section(make_serve(1, goodput_attainment=kept), make_serve(2, goodput_attainment=broken))
    assert "The knee is at 1 user at once: at 2 only 50% within ttft 500 ms." in said
    said = section(make_serve(1, goodput_attainment=broken), make_serve(2, goodput_attainment=broken))
    assert "No knee was found: even at 1: only 50% within ttft 500 ms." in said
    assert ">knee<" not in said


def test_a_trace_has_a_table_and_no_curve(make_serve):
    body = section(make_serve(4, rate="trace"))
    assert "<td class='right'>trace</td>" in body
    assert "Time to the first token" not in body


def test_nothing_that_succeeded(make_serve):
    unknown = ("output_throughput", "median_ttft_ms", "spec_decode_per_position_acceptance_rates")
    run = make_serve(completed=0, failures={"timed out after 5 s": 12}, **dict.fromkeys(unknown))
    assert "12 requests failed: timed out after 5 s" in section(run)
