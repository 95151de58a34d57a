"""Every family and every way of feeding it, against transformers on the same random weights, float32."""

from __future__ import annotations

import pytest
import torch

TOLERANCE = 1e-4


def tokens_of(seed: int, num: int) -> list[int]:
    return torch.randint(3, 160, (num,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def reference(model, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens])).logits[0]


def assert_close(expected: torch.Tensor, got: torch.Tensor) -> None:
    assert expected.std() > 0.1  # logits that say something
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_whole_prompt(case, oracles, driver):
    model, decoder = oracles(case)
    tokens = tokens_of(1, 150)
    assert_close(reference(model, tokens), driver(decoder).step({"a": tokens})["a"])


def test_chunks_and_single_tokens_equal_the_whole(case, oracles, driver):
    model, decoder = oracles(case)
    tokens = tokens_of(2, 190)
    feed, logits, start = driver(decoder), [], 0
    for size in (60, 1, 1, 5, 90, 33):
        logits.append(feed.step({"a": tokens[start : start + size]})["a"])
        start += size
    assert_close(reference(model, tokens), torch.cat(logits))


def test_cached_prefix_equals_cold(case, oracles, driver):
    model, decoder = oracles(case)
    prefix, one, two = tokens_of(3, 96), tokens_of(4, 20), tokens_of(5, 7)
    feed = driver(decoder)
    feed.step({"a": prefix + one})
    feed.share_prefix("b", "a", len(prefix))
    assert_close(reference(model, prefix + two)[len(prefix) :], feed.step({"b": two})["b"])


def test_mixed_rows(case, oracles, driver):
    model, decoder = oracles(case)
    rows = {name: tokens_of(10 + i, num) for i, (name, num) in enumerate({"a": 140, "b": 3, "c": 65, "d": 30}.items())}
    feed = driver(decoder)
    feed.step({"a": rows["a"][:-1], "c": rows["c"][:-4]})
    got = feed.step({"a": rows["a"][-1:], "b": rows["b"], "c": rows["c"][-4:], "d": rows["d"]})
    for name, tokens in rows.items():
        assert_close(reference(model, tokens)[-len(got[name]) :], got[name])


def test_rows_with_drafts_equal_one_token_at_a_time(case, oracles, driver):
    _, decoder = oracles(case)
    tokens, drafts = tokens_of(6, 125), tokens_of(7, 6)
    one_by_one, at_once = driver(decoder), driver(decoder)
    for feed in (one_by_one, at_once):
        feed.step({"a": tokens})
    expected = torch.cat([one_by_one.step({"a": [token]})["a"] for token in drafts])
    got = at_once.step({"a": drafts})["a"]
    assert_close(expected, got)
    assert torch.equal(expected.argmax(-1), got.argmax(-1))


def test_rejected_drafts_leave_no_trace(case, oracles, driver):
    model, decoder = oracles(case)
    tokens = tokens_of(8, 70)
    feed = driver(decoder)
    feed.step({"a": tokens[:60]})
    feed.step({"a": tokens[60:62] + tokens_of(9, 5)})
    feed.rewind("a", 5)
    assert_close(reference(model, tokens)[62:], feed.step({"a": tokens[62:]})["a"])


def test_greedy_text_is_equal(case, oracles, driver):
    model, decoder = oracles(case)
    prompt = tokens_of(11, 12)
    expected = model.generate(
        torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=-1, pad_token_id=0
    )[0, len(prompt) :].tolist()
    feed = driver(decoder)
    got = [int(feed.step({"a": prompt})["a"][-1].argmax())]
    while len(got) < len(expected):
        got.append(int(feed.step({"a": got[-1:]})["a"][-1].argmax()))
    assert expected == got


@pytest.mark.parametrize("block_size", [8, 32, 48])
@pytest.mark.parametrize("name", ["llama", "mistral-window"])
def test_other_block_sizes(name, block_size, oracles, driver):
    model, decoder = oracles(name)
    tokens = tokens_of(12, 170)
    feed = driver(decoder, block_size=block_size)
    got = torch.cat([feed.step({"a": tokens[:100]})["a"], feed.step({"a": tokens[100:]})["a"]])
    assert_close(reference(model, tokens), got)


def test_bfloat16_stays_near_float32(oracles, driver):
    from threefold.models.decoder import Decoder

    model, exact = oracles("qwen3")
    rough = Decoder(exact.spec, torch.bfloat16, torch.device("cpu"))
    rough.load(model.state_dict().items())
    tokens = tokens_of(13, 140)
    expected = driver(exact).step({"a": tokens})["a"]
    got = driver(rough, dtype=torch.bfloat16).step({"a": tokens})["a"]
    assert torch.nn.functional.cosine_similarity(expected, got, dim=-1).min() > 0.99


def test_a_row_does_not_feel_its_neighbours(oracles, driver):
    """Whoever stands beside a row: only its products may differ, in their last bits."""
    _, decoder = oracles("llama")
    tokens = tokens_of(14, 40)
    alone, beside = driver(decoder), driver(decoder)
    expected = alone.step({"a": tokens})["a"]
    got = beside.step({"b": tokens_of(15, 7), "a": tokens, "c": tokens_of(16, 90)})["a"]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
