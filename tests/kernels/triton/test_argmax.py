"""Triton's most likely token, interpreted, against its contract: lowest id among equals, NaN above all."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.argmax import most_likely_reference, note_most_likely_reference
from threefold.kernels.triton.argmax import PIECE, most_likely_body, note_most_likely_body

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [1, 7, PIECE, PIECE + 1, 3 * PIECE - 5])
def test_body_equals_reference(dtype: torch.dtype, vocab: int) -> None:
    torch.manual_seed(0)
    logits = (3 * torch.randn(4, vocab)).to(dtype)  # in bf16 many are equal

    tokens, values = most_likely_body(logits)
    expected_tokens, expected_values = most_likely_reference(logits)

    assert tokens.tolist() == expected_tokens.tolist()
    assert values.tolist() == expected_values.tolist()
    assert (tokens.dtype, values.dtype) == (torch.int64, torch.float32)


@pytest.mark.parametrize(
    ("row", "token", "value"),
    [
        ([0.0, 2.0, 2.0, 1.0], 1, 2.0),
        ([-0.0, 0.0, -1.0, 0.0], 0, 0.0),
        ([-INF, -INF, -3.0, -INF], 2, -3.0),
        ([-INF, -INF, -INF, -INF], 0, -INF),
        ([1.0, INF, NAN, NAN], 2, NAN),
        ([-NAN, INF, 0.0, 0.0], 0, NAN),
    ],
)
@pytest.mark.parametrize("body", [most_likely_body, most_likely_reference])
def test_ties_infinities_and_nan(row: list[float], token: int, value: float, body) -> None:
    tokens, values = body(torch.tensor([row]))

    assert [token] == tokens.tolist()
    torch.testing.assert_close(values, torch.tensor([value]), equal_nan=True)


def test_rows_of_a_wider_tensor_and_no_rows() -> None:
    wide = torch.randn(3, 50)

    assert wide[:, :20].argmax(-1).tolist() == most_likely_body(wide[:, :20])[0].tolist()
    assert [] == most_likely_body(wide[:0])[0].tolist()


@pytest.mark.parametrize("vocab", [7, PIECE + 1])
def test_tokens_are_noted_and_packed(vocab: int) -> None:
    logits = torch.randn(4, vocab, generator=torch.Generator().manual_seed(1))
    logits[2, 3] = NAN
    places = torch.tensor([5, 0, 6, 6])  # two that nobody needs
    made = []
    for body in (note_most_likely_body, note_most_likely_reference):
        noted = torch.arange(100, 107)
        tokens, values, packed = body(logits, places, noted)
        assert noted[[5, 0]].tolist() == tokens[:2].tolist()
        assert noted[1:5].tolist() == [101, 102, 103, 104]
        assert packed[0].tolist() == tokens.tolist()
        assert torch.equal(packed[1], values.view(torch.int32))
        made.append((tokens.tolist(), packed.dtype, packed.shape, values[[0, 1, 3]].tolist(), values[2].isnan()))
    assert made[0] == made[1]
    assert note_most_likely_body(logits[:0], places[:0], torch.zeros(1, dtype=torch.int64))[2].shape == (2, 0)
