"""Overlapped steps give the tokens of steps in order, on the card, token for token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from threefold.request import SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_graphs", [True, False])
def test_overlapped_is_synchronous_token_for_token(card_engine, mixed_prompts, mixed_wishes, dtype, has_graphs):
    in_order = card_engine(dtype, is_overlapped=False, has_graphs=has_graphs)
    overlapped = card_engine(dtype, is_overlapped=True, has_graphs=has_graphs)
    # One length: then both loops run the same rows in every step, and every product has the same shape.
    expected = in_order.answers(mixed_prompts, mixed_wishes)
    assert overlapped.answers(mixed_prompts, mixed_wishes) == expected
    assert all(len(answer) == 40 for answer in expected)


def test_requests_that_wait_and_end_at_different_times(card_engine, mixed_prompts, mixed_wishes):
    wishes = [replace(wish, max_tokens=3 + 5 * (i % 9)) for i, wish in enumerate(mixed_wishes)]
    expected = card_engine(is_overlapped=False, max_num_seqs=16).answers(mixed_prompts, wishes)
    answers = card_engine(is_overlapped=True, max_num_seqs=16).answers(mixed_prompts, wishes)
    same = sum(a == b for a, b in zip(answers, expected, strict=True))
    print(f"{same} of {len(expected)} answers are the same; requests are admitted a step later where steps overlap")
    assert same >= 60


def test_penalties_and_logprobs_wait_for_the_last_token(card_engine, mixed_prompts):
    kinds = [{"logprobs": 2}, {"repetition_penalty": 1.3}, {"frequency_penalty": 0.5, "prompt_logprobs": 1}, {}]
    wishes = [SamplingParams(max_tokens=12, temperature=0.0, **kinds[i % 4]) for i in range(8)]
    expected = card_engine(is_overlapped=False).answers(mixed_prompts[:8], wishes)
    assert card_engine(is_overlapped=True).answers(mixed_prompts[:8], wishes) == expected


def test_the_card_hardly_rests_between_steps(card_engine):
    engine = card_engine(torch.bfloat16)
    wishes = [SamplingParams(max_tokens=200, temperature=0.0)] * 32
    idle_ms = []
    plain = engine.core.executor.collect

    def collect():
        result = plain()
        idle_ms.append(result.idle_ms)
        return result

    engine.core.executor.collect = collect
    engine.answers([[i + 1] * 20 for i in range(32)], wishes)
    steady = sorted(idle_ms[20:-5])
    print(f"idle between steps: median {steady[len(steady) // 2]:.3f} ms, most {steady[-1]:.3f} ms")
    assert len(steady) > 100
