"""A comparison for eyes: a table, and the verdict in a sentence. Computes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from threefold.bench.report import drawn_table
from threefold.quality.documents import Sample
from threefold.quality.readings import Floats

Result = Mapping[str, Any]


def verdict(result: Result) -> str:
    """What the comparison says, in plain words."""
    change, apart, divergence = result["perplexity_change"], result["disagreement"], result["divergence"]
    if apart["value"] == 0 and divergence["value"] == 0:
        return "B answers exactly as A at every token of this text"
    return (
        f"B answers differently at {_percent(apart['value'])} of tokens; perplexity {_signed(change['value'])}"
        f"{_span(change, _signed)}: {_weighed(change)}"
    )


def _weighed(change: Mapping[str, float | None]) -> str:
    low, high = change["low"], change["high"]
    if low is None or high is None:
        return "too few texts to say whether that is chance"
    if low > 0:
        return "a real loss on texts of this kind"
    return "B fits texts of this kind better" if high < 0 else "no loss that this many texts can show"


def quality_lines(result: Result) -> list[str]:
    """The table, what it rests on, and the verdict."""
    models = [f"{side}: {result[f'model_{side.lower()}']['label']}" for side in "AB"]
    texts = f"{result['num_tokens']:,} tokens judged in {result['num_pieces']:,} pieces of {result['data']}"
    rows = [
        ["perplexity of A", *_cells(result["perplexity_a"], "{:.4g}".format)],
        ["perplexity of B", *_cells(result["perplexity_b"], "{:.4g}".format)],
        ["B over A", *_cells(result["perplexity_change"], _signed)],
        ["mean KL(A || B), nats a token", *_cells(result["divergence"], "{:.3g}".format)],
        ["… the 99th percentile", f"{result['divergence_p99']:.3g}", ""],
        ["another most likely token", *_cells(result["disagreement"], _percent)],
    ]
    table = drawn_table(["", "", "95 of 100 times in"], rows)
    return [*models, texts, *table, *(f"note: {line}" for line in result["remarks"]), result["verdict"]]


def remarks(result: Result, sample: Sample, width: int) -> list[str]:
    """What a reader of the figures must know."""
    lines = []
    if result["num_top"]:
        lines.append(f"the models were read one after the other: KL by A's {result['num_top']} most likely tokens and "
                     "the rest as one, a lower bound")  # fmt: skip
    num_texts = len(sample.documents)
    if 0 < sample.num_answers < num_texts:
        lines.append(f"{num_texts - sample.num_answers} of {num_texts} texts have no answer: all of them is judged")
    if sample.num_skipped:
        lines.append(f"{sample.num_skipped} entries hold no text and were passed over")
    sides = [result[f"model_{side}"] for side in "ab"]
    vocabularies = {side["vocab_size"] for side in sides}
    if len(vocabularies) > 1:
        lines.append(f"vocabularies of {' and '.join(map(str, sorted(vocabularies)))} compared on their first {width}")
    if any(side["quantization"] == "fp8" and not side["is_gpu"] for side in sides):
        lines.append("on a CPU only weights are FP8; a card rounds activations too, and loses a little more")
    if result["perplexity_change"]["low"] is None:
        lines.append("too few pieces for intervals; give more text, or a smaller --window")
    if result["is_cut"]:
        lines.append("cut short by Ctrl-C; what was read stands")
    return lines


def running(means: Floats) -> str:
    """The figures so far, for a progress line."""
    change = 100 * math.expm1(means[1] - means[0])
    return f"perplexity {change:+.2f} %, KL {means[2]:.3g}, differs at {100 * (1 - means[3]):.2f} %"


def _cells(figure: Mapping[str, float], say: Callable[[float], str]) -> list[str]:
    span = "" if figure["low"] is None else f"{say(figure['low'])} … {say(figure['high'])}"
    return [say(figure["value"]), span]


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _signed(value: float) -> str:
    return f"{100 * value:+.2f} %"


def _span(figure: Mapping[str, float], say: Callable[[float], str]) -> str:
    return "" if figure["low"] is None else f" ({say(figure['low'])} to {say(figure['high'])})"
