import pytest
from markupsafe import Markup

from threefold.report.charts import Line, Mark, bar_chart, line_chart, span_chart

pytest.importorskip("matplotlib")


def test_colours_are_the_pages_and_no_name_is_left():
    svg = line_chart([Line("a", [1, 2], [3, 4])], x_label="x", y_label="y")
    assert isinstance(svg, Markup)
    assert svg.startswith('<svg role="img" aria-label="y against x"')
    assert "var(--s0)" in svg
    assert "#0102" not in svg
    assert '<g id="' not in svg
    assert "<?xml" not in svg
    assert "width=" not in svg.partition(">")[0]


def test_names_and_values_under_the_pointer_are_escaped():
    svg = bar_chart(["<b>"], [1.0], ["<i>"], x_label="<u>")
    assert "<title>&lt;b&gt;: &lt;i&gt;</title>" in svg
    assert not {"<b>", "<i>", "<u>"} & set(svg.split())


@pytest.mark.parametrize(("values", "is_log"), [([1.0, 1000.0], True), ([1.0, 2.0], False), ([0.0, 1000.0], False)])
def test_values_far_apart_lie_on_powers(values, is_log):
    svg = line_chart([Line("a", [1, 2], values)], x_label="x", y_label="y")
    assert (">50<" in svg and ">500<" in svg) == is_log


def test_marks():
    knee, limit, beyond = Mark(2, "knee"), Mark(3.5, "limit"), Mark(99.0, "beyond")
    svg = line_chart([Line("a", [1, 2], [3, 4])], x_label="x", y_label="y", knees=[knee], levels=[limit, beyond])
    assert ">knee<" in svg
    assert ">limit<" in svg
    assert ">beyond<" not in svg, "a limit far above all values would flatten them"


def test_spans_may_lack_their_ends():
    spans = [Line("said", [0, 1], [1.0, 2.0]), Line("was", [0, 1], [1.0, 2.0], [0.5, 1.0], [1.5, 2.5])]
    assert span_chart(["one", "two"], spans, x_label="%").count("<title>") == 4


def test_one_chart_is_drawn_alike_every_time():
    first, second = (line_chart([Line("a", [1, 2], [3, 4])], x_label="x", y_label="y") for _ in range(2))
    assert first == second
