import pytest

from threefold.advise.result import LoadResult
from threefold.advise.targets import missed, parse_targets
from threefold.errors import ConfigError


def test_words_and_commas():
    assert parse_targets(["ttft:500,tpot:50", "e2el:9000"]) == {"ttft": 500.0, "tpot": 50.0, "e2e": 9000.0}
    assert parse_targets([]) == {}


@pytest.mark.parametrize("term", ["ttft", "ttft:", "ttft:fast", "ttft:-1", "ttft:0", "ttft:nan", "speed:3"])
def test_nonsense(term):
    with pytest.raises(ConfigError, match="wants ttft:MS"):
        parse_targets([term])


def test_nine_in_ten_must_meet_them():
    result = LoadResult(ttft_ms=[10.0] * 19 + [900.0], tpot_ms=[60.0] * 20)
    assert missed(result, {"ttft": 100.0}) == []
    assert missed(result, {"ttft": 5.0, "tpot": 50.0}) == ["ttft p90 10 ms > 5 ms", "tpot p90 60 ms > 50 ms"]
    assert missed(LoadResult(), {"ttft": 1.0}) == []
