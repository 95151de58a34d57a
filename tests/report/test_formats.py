import math

import pytest

from threefold.report.formats import change, count, percent, plural, share, short, times


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0"), (12345, "12,345"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (0.0123, "0.0123"), (None, "–"),
     ("x", "–"), (True, "–"), (math.nan, "–"), (math.inf, "–")],
)  # fmt: skip
def test_counts(value, said):
    assert count(value) == said


@pytest.mark.parametrize(
    ("value", "said"), [(4096, "4,096"), (0.30000000000000004, "0.3"), (262_144, "262k"), (1_048_576, "1.05M")]
)
def test_axes(value, said):
    assert short(value) == said


def test_shares_and_changes():
    assert (share(0.123), share(None)) == ("12 %", "–")
    assert (percent(12.3), percent(None)) == ("12 %", "–")
    assert [change(value) for value in (0.123, -0.123, -0.001, None)] == ["+12 %", "-12 %", "0 %", "–"]
    assert (times(1.234), times(None)) == ("1.23 ×", "–")
    assert (plural(1, "user"), plural(2000, "user")) == ("1 user", "2,000 users")
