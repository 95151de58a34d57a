import pytest

from threefold.quality.documents import Sample
from threefold.quality.words import quality_lines, remarks, running, verdict


def figure(value, low=None, high=None):
    return {"value": value, "low": low, "high": high}


def result(**more):
    return {
        "model_a": {"label": "big (bfloat16)", "vocab_size": 10, "quantization": None, "is_gpu": False},
        "model_b": {"label": "small (bfloat16)", "vocab_size": 10, "quantization": "fp8", "is_gpu": True},
        "num_tokens": 12345,
        "num_pieces": 40,
        "data": "text.jsonl",
        "perplexity_a": figure(10.0, 9.0, 11.0),
        "perplexity_b": figure(10.08, 9.1, 11.1),
        "perplexity_change": figure(0.008, 0.005, 0.011),
        "divergence": figure(0.0123, 0.01, 0.02),
        "divergence_p99": 0.4,
        "disagreement": figure(0.031, 0.028, 0.034),
        "num_top": 0,
        "is_cut": False,
        "remarks": ["a remark"],
        "verdict": "a verdict",
    } | more


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (figure(0.008, 0.005, 0.011), "perplexity +0.80 % (+0.50 % to +1.10 %): a real loss"),
        (figure(0.001, -0.001, 0.003), "no loss that this many texts can show"),
        (figure(-0.1, -0.2, -0.05), "B fits texts of this kind better"),
        (figure(0.1), "perplexity +10.00 %: too few texts"),
    ],
)
def test_the_verdict_weighs_the_interval(change, said):
    words = verdict(result(perplexity_change=change))
    assert words.startswith("B answers differently at 3.10 % of tokens; ")
    assert said in words


def test_equal_models_are_called_so():
    same = result(disagreement=figure(0.0), divergence=figure(0.0))
    assert verdict(same) == "B answers exactly as A at every token of this text"


def test_the_table_names_both_and_ends_with_the_verdict():
    lines = quality_lines(result())
    assert lines[:3] == [
        "A: big (bfloat16)",
        "B: small (bfloat16)",
        "12,345 tokens judged in 40 pieces of text.jsonl",
    ]
    assert lines[-2:] == ["note: a remark", "a verdict"]
    assert any("10.08" in line and "9.1 … 11.1" in line for line in lines)


def test_remarks_say_what_the_figures_rest_on():
    sample = Sample([([1], 0)] * 3, num_answers=2, num_in_file=5, num_skipped=1)
    assert remarks(result(), Sample([([1], 0)], 0, 1, 0), 10) == []
    other = {"vocab_size": 12, "quantization": "fp8", "is_gpu": False}
    known = remarks(result(num_top=64, is_cut=True, perplexity_change=figure(0.1), model_b=other), sample, 10)
    for said in (
        "a card rounds activations too",
        "a lower bound",
        "1 of 3 texts have no answer",
        "1 entries",
        "10 and 12",
        "too few pieces",
        "Ctrl-C",
    ):
        assert any(said in line for line in known), said


def test_the_running_line():
    assert running([1.0, 1.01, 0.02, 0.95]) == "perplexity +1.01 %, KL 0.02, differs at 5.00 %"
